"""TensorEntry: the name of a captured tensor, with all that follows from it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tdbg.capture.adapter import Part, TensorRef, UnitSummarySpec
from tdbg.config.collections import Role

if TYPE_CHECKING:
    from tdbg._core import TensorEntry as CoreEntry
    from tdbg.capture.writer import Writer

__all__ = ["TensorEntry"]

# Element type, shape and shard: what a definition has beside the name.
_Key = tuple[str, tuple[int, ...], Part | None]


class TensorEntry:
    """The name of a captured tensor.

    The core's half, ``core``, defines the name for each element type and shape that
    the batch capture meets.  This half adds what the policy needs, and the
    definitions of tensors that the batch capture cannot read.

    Thread safety: none; the thread of the recorder.

    Attributes:
        name: The name.
        role: What the tensor is to the training.
        aliases: Other names of the same tensor.
        classes: Those of the module that the tensor belongs to, and its kind.
        capture_class: Says, with a step plan, what is captured of the tensor.
        collections: Names of the collections that the tensor belongs to; None until
            they are asked for.
        unit_spec: How the tensor's units are counted, if a rule needs that; None:
            the tensor has none.
        units: The entry of the unit summary; None while units are not counted.
        core: The core's half.
        shards: The core's half of each shard, where the tensor is distributed.
        ids: Ids of the definitions made by ``id_of``.
    """

    __slots__ = (
        "aliases",
        "capture_class",
        "classes",
        "collections",
        "core",
        "ids",
        "name",
        "role",
        "shards",
        "unit_spec",
        "units",
    )

    def __init__(
        self,
        name: str,
        role: Role,
        capture_class: int,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        unit_spec: UnitSummarySpec | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.aliases = aliases
        self.classes = classes
        self.capture_class = capture_class
        self.collections: list[str] | None = None
        self.unit_spec = unit_spec
        self.units: TensorEntry | None = None
        self.core = self._make_core(None)
        self.shards: dict[Part, CoreEntry] = {}
        self.ids: dict[_Key, int] = {}

    def count_units(self, units: TensorEntry) -> None:
        """From now on count the tensor's units, as the summary *units*."""
        limit = self.raw_limit
        self.units = units
        self.shards = {}
        self.core = self._make_core(None)
        self.core.raw_limit = limit

    def shard(self, part: Part | None) -> CoreEntry:
        """Return the core's half for a part of the tensor; None: for the whole."""
        if part is None:
            return self.core
        core = self.shards.get(part)
        if core is None:
            core = self.shards[part] = self._make_core(part)
            core.raw_limit = self.raw_limit
        return core

    def id_of(self, ref: TensorRef, writer: Writer) -> int:
        """Return the id of the definition for a tensor, which it makes if need be."""
        key = ref.dtype, ref.shape, ref.part
        identity = self.ids.get(key)
        if identity is None:
            part = {} if ref.part is None else ref.part._asdict()
            identity = self.ids[key] = writer.define(
                self.name,
                int(self.role),
                ref.dtype,
                ref.shape,
                item_size=ref.item_size,
                aliases=self.aliases,
                **part,
            )
        return identity

    @property
    def raw_limit(self) -> int:
        """Largest value, in bytes, that the flag LIMITED_VALUES captures."""
        return self.core.raw_limit

    @raw_limit.setter
    def raw_limit(self, n_bytes: int) -> None:
        for core in (self.core, *self.shards.values()):
            core.raw_limit = n_bytes

    @property
    def too_large(self) -> int:
        """Size of the largest value above the limit, in bytes; 0: there was none."""
        return max(core.too_large for core in (self.core, *self.shards.values()))

    def _make_core(self, part: Part | None) -> CoreEntry:
        # Loaded here, so that hooks can be imported without the core.
        core: type[CoreEntry] = import_module("tdbg._core").TensorEntry
        spec = self.unit_spec or UnitSummarySpec()
        units = "" if self.units is None else self.units.name
        return core(
            self.name,
            int(self.role),
            self.aliases,
            units,
            *(part or ()),
            low=spec.low,
            high=spec.high,
            rows_are_units=spec.rows_are_units,
            units_last=spec.units_last,
        )
