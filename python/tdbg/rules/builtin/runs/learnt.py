"""LearntInvariants: statements that held in healthy runs, and do not hold here."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tdbg.config.collections import BUILT_IN, Role
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import join_names, plural
from tdbg.config.tensor_names import GRADIENT, PREFIXES, UPDATE
from tdbg.errors import ConfigurationError
from tdbg.rules.columns import first_of_columns
from tdbg.rules.learnt.bounded import BOUNDED
from tdbg.rules.learnt.exact import EXACT
from tdbg.rules.learnt.invariants import (
    InvariantFile,
    LearntInvariant,
    read_invariants,
)
from tdbg.rules.learnt.rows import WHOLE, JudgedInvariants, Relation, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule
from tdbg.rules.table import LASTING
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity

__all__ = ["LearntInvariants"]

# Files that stay read between windows.
_OPEN_FILES = 8


@register
@dataclass(frozen=True, slots=True)
class LearntInvariants(Rule):
    """Report invariants of healthy runs that do not hold in this one.

    At each step and for each kind of invariant, the finding names the first tensor in
    the order of execution, and says how many more break with it.

    Args:
        file: The file that ``tdbg learn`` has written.

    Raises:
        ConfigurationError: If the file cannot be read, or has no invariants; names the
            line.
        UnsupportedFeature: If a later tdbg wrote the file.

    Example::

        tdbg check runs/new --invariants invariants.json
    """

    by_default: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = tuple(Severity)

    file: str

    def __post_init__(self) -> None:
        given: object = self.file
        if not isinstance(given, str) or not given:
            msg = f"{self.name}.file is {given!r}; give a file that tdbg learn wrote"
            raise ConfigurationError(msg)
        self.invariants()

    def invariants(self) -> InvariantFile:
        """Return the invariants of the file."""
        return _read(self.file, _changed_ns(self.file))

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the collections that the tensors belong to, and of losses."""
        names = frozenset({"losses", "scalars"})
        for each in self.invariants().invariants:
            names |= _collections_of(each)
        return with_beginning(Needs(collections=names & frozenset(BUILT_IN)))

    @property
    def lookback(self) -> int:
        """The rows that ranges and standstills need."""
        return LASTING

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return "rows of tensors that the invariants name"

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return nothing: whoever gives a file asks."""
        del training
        return ""

    def absent(self, names: Iterable[str]) -> str:
        """Say how many invariants name tensors that the run lacks."""
        learnt, known = self.invariants(), [*names]
        missing = learnt.missing(known)
        if not missing:
            return ""
        lost = dict.fromkeys(each.tensor for each in missing)
        return (
            f"{len(missing):,} of {plural(len(learnt.invariants), 'invariant')} name "
            f"tensors that the run does not have: {join_names([*lost])}"
        )

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the tensors that invariants name, and losses, which all steps have."""
        named = _names(self.file, _changed_ns(self.file))
        return tensor.role == "loss" or tensor.name in named

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge all invariants of the modes that have new steps."""
        learnt = self.invariants()
        for table in window.tables():
            of_mode = [
                each for each in learnt.invariants if each.mode == table.mode.name
            ]
            if of_mode:
                rows = Rows.of(table, window, learnt.steps)
                yield self._evaluation(table, rows, of_mode)

    def _evaluation(
        self, table: Table, rows: Rows, invariants: Sequence[LearntInvariant]
    ) -> Evaluation:
        found = [*_judged(rows, invariants)]
        subjects = [each.tensor for _, judged in found for each in judged.invariants]
        names = tuple(dict.fromkeys(subjects))
        place = {name: i for i, name in enumerate(names)}
        new = slice(table.start, None)
        shape = len(names), len(table.steps)
        severities = np.full(shape, UNKNOWN, np.int8)
        unnamed = np.zeros(shape, bool)
        leading: dict[tuple[int, int], tuple[Relation, JudgedInvariants, int]] = {}
        for relation, judged in found:
            at = np.array([place[each.tensor] for each in judged.invariants], np.intp)
            verdicts = np.where(judged.known, OK, UNKNOWN).astype(np.int8)
            np.maximum.at(severities, at, verdicts)
            np.logical_or.at(unnamed, at, judged.broken)
            ks, columns = first_of_columns(judged.broken)
            for k, j in zip(ks.tolist(), columns.tolist(), strict=True):
                cell = int(at[k]), j
                if cell not in leading or relation.severity > leading[cell][0].severity:
                    leading[cell] = relation, judged, k
        severities[unnamed] = UNKNOWN
        for (i, j), (relation, _, _) in leading.items():
            severities[i, j] = int(relation.severity)

        def describe(i: int, j: int) -> Description:
            column = j + table.start
            relation, judged, k = leading[i, column]
            return self._describe(relation, judged, k, rows, column)

        return Evaluation(
            names=names,
            steps=table.steps[new],
            mode=table.mode,
            severities=severities[:, new],
            describe=describe,
        )

    def _describe(
        self,
        relation: Relation,
        judged: JudgedInvariants,
        k: int,
        rows: Rows,
        column: int,
    ) -> Description:
        invariant = judged.invariants[k]
        said, value, limit = relation.describe(invariant, rows, column)
        broken = np.flatnonzero(judged.broken[:, column])
        others = dict.fromkeys(judged.invariants[int(i)].tensor for i in broken)
        others.pop(invariant.tensor, None)
        if others:
            known = {each.tensor for each in judged.invariants}
            said += (
                f" The same kind of invariant is broken for {len(others):,} more of "
                f"{plural(len(known), 'tensor')}: {join_names([*others])}."
            )
        lines = "this line" if len(broken) == 1 else "these lines"
        return Description(
            message=said,
            value=value,
            threshold=limit,
            advice="Look at what has changed in your program since the healthy run, at "
            f"this step and tensor first. If you meant it, delete {lines} from "
            f"{self.file}: {_lines(judged.invariants[int(i)].line for i in broken)}.",
        )


def _judged(
    rows: Rows, invariants: Sequence[LearntInvariant]
) -> Iterator[tuple[Relation, JudgedInvariants]]:
    """Yield the verdicts of each kind, in the order of execution."""
    places = {**rows.places(), WHOLE: -1}
    by_kind: dict[str, list[LearntInvariant]] = {}
    for each in invariants:
        is_there = each.tensor in places and (each.other or WHOLE) in places
        if is_there or each.kind == "parameter":
            by_kind.setdefault(each.kind, []).append(each)
    there = rows.known.any(axis=0)
    for relation in (*EXACT, *BOUNDED):
        if relation.kind not in by_kind:
            continue
        of_kind = by_kind[relation.kind]
        of_kind.sort(key=lambda each: places.get(each.tensor, len(places)))
        judged = relation.judge(of_kind, rows)
        yield (
            relation,
            JudgedInvariants(
                invariants=judged.invariants,
                known=judged.known & there,
                broken=judged.broken & there,
            ),
        )


def _changed_ns(file: str) -> int:
    """Return when a file was changed; 0 if nobody can say."""
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=_OPEN_FILES)
def _read(file: str, changed_ns: int) -> InvariantFile:
    del changed_ns
    return read_invariants(file)


@functools.lru_cache(maxsize=_OPEN_FILES)
def _names(file: str, changed_ns: int) -> frozenset[str]:
    """Return the tensors whose rows decide on the invariants of a file."""
    every = _read(file, changed_ns).invariants
    weights = (each.tensor.removeprefix(UPDATE) for each in every)
    return frozenset({*weights, *(e.tensor for e in every), *(e.other for e in every)})


def _collections_of(invariant: LearntInvariant) -> set[str]:
    """Return the collections that the tensor of an invariant may be in."""
    name = invariant.tensor
    if name.startswith(GRADIENT):
        return {"gradients"}
    if name.startswith(UPDATE):
        return {"updates", "weights"}
    if name.startswith(PREFIXES[Role.SCALAR]):
        return {"scalars"}
    if "_output_" in name:
        return {"outputs", "losses"}
    if "_input_" in name:
        return {"model_inputs", "predictions"}
    return {"weights", "biases"} if name != WHOLE else set()


def _lines(numbers: Iterable[int], most: int = 10) -> str:
    found = sorted({each for each in numbers if each})
    shown = ", ".join(map(str, found[:most]))
    return f"{shown}, ... ({len(found):,} lines)" if len(found) > most else shown
