"""Files of invariants that were learnt from healthy runs.

Implements docs/learnt-invariants.md, "The file".  A file has a line of JSON for its
head and one for each invariant, so that a person may delete or edit lines.

Thread safety: immutable values; ``read_invariants`` opens a file.

Errors: ConfigurationError names the file and the line; UnsupportedFeature is of files
that a later tdbg wrote.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdbg.config.messages import nearest, short
from tdbg.errors import ConfigurationError, UnsupportedFeature
from tdbg.modes import ModeKeys
from tdbg.run.json_values import is_integer, list_of, load_json, mapping_of

__all__ = [
    "KINDS",
    "PHASES",
    "Bounds",
    "InvariantFile",
    "LearntInvariant",
    "read_invariants",
]

FORMAT, VERSION = "tdbg invariants", 1
#: The parts of a training, by the training step at which each begins.
PHASES = ("begin", "middle", "end")
#: The kinds of invariants; docs/learnt-invariants.md describes them.
KINDS = (
    *("training", "parameter", "changes", "equal", "dtype", "rate", "evaluation"),
    *("order", "initial", "range"),
)
# Those that each kind can be about; others have none.
WHATS: Mapping[str, tuple[str, ...]] = {
    "training": (
        *("has_stopped", "keeps_gradients", "trains_in_evaluation"),
        "replicas_differ",
    ),
    "parameter": ("requires_grad", "has_optimizer", "has_gradient"),
    "range": (
        *("rms", "gradient_rms", "loss", "learning_rate", "zero_share"),
        "update_ratio",
    ),
    "initial": ("rms",),
    "rate": ("rises", "falls"),
}
# The kinds that are about two tensors.
_PAIRS = frozenset({"equal", "order"})
# The type of the value of each kind that has one.
_VALUES: Mapping[str, type] = {
    **dict.fromkeys(("training", "parameter", "changes", "rate"), bool),
    "dtype": str,
    "evaluation": int,
}
_VALUE_WORDS = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    type(None): "none",
}
# The largest file that is read: about 300,000 invariants.
MAX_BYTES = 64 << 20

#: Least and greatest value; None: there is no such limit.
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntInvariant:
    """A statement that held at every step of the healthy runs.

    Attributes:
        kind: One of ``KINDS``.
        tensor: The tensor, scalar or parameter; "training" for the whole of it.
        mode: Mode of the steps, as ``ModeKeys`` names it.
        what: The quantity or fact of the tensor, if its kind has several.
        other: The tensor that an ``equal`` one equals, or an ``order`` puts above it.
        value: What holds, for kinds without bounds.
        bounds: The bounds of each phase, with the margin.
        seen: Least and greatest value in the healthy runs, by phase.
        rows: How many recorded steps support it, in all runs.
        line: Its line in the file; 0: it is in none.
    """

    kind: str
    tensor: str
    mode: str = ModeKeys.TRAIN.name
    what: str = ""
    other: str = ""
    value: bool | int | str | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    seen: Mapping[str, Bounds] = field(default_factory=dict)
    rows: int = 0
    line: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """The key that the same statement has in several runs."""
        return self.kind, self.tensor, self.mode, self.what, self.other

    def to_json(self) -> dict[str, Any]:
        """Return the invariant as its line has it: without what it does not have."""
        document = {each.name: getattr(self, each.name) for each in _FIELDS}
        for name in ("bounds", "seen"):
            document[name] = {
                phase: [_rounded(end) for end in ends]
                for phase, ends in document[name].items()
            }
        return {key: value for key, value in document.items() if _says(value)}


_FIELDS = tuple(
    each for each in dataclasses.fields(LearntInvariant) if each.name != "line"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantFile:
    """Invariants, and the runs that they were learnt from.

    Attributes:
        runs: Names of the healthy runs.
        steps: How many training steps they had; the least of them.
        invariants: The invariants, in the order of kinds and of execution.
        path: Where the file is; "": nowhere yet.
    """

    runs: tuple[str, ...]
    steps: int
    invariants: tuple[LearntInvariant, ...]
    path: str = ""

    @property
    def phases(self) -> dict[str, int]:
        """The training step at which each phase begins."""
        return phases_of(self.steps)

    def head(self) -> dict[str, Any]:
        """Return the first line as a dictionary."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "runs": list(self.runs),
            "steps": self.steps,
            "phases": self.phases,
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything as one dictionary that JSON can hold."""
        return {
            **self.head(),
            "invariants": [each.to_json() for each in self.invariants],
        }

    def text(self) -> str:
        """Return the text of the file: a line for the head and each invariant."""
        documents = [self.head(), *(each.to_json() for each in self.invariants)]
        return "".join(f"{json.dumps(each)}\n" for each in documents)

    def counts(self) -> dict[str, int]:
        """Return the number of invariants of each kind that has some."""
        found = dict.fromkeys(KINDS, 0)
        for each in self.invariants:
            found[each.kind] += 1
        return {kind: n for kind, n in found.items() if n}

    def missing(self, names: Iterable[str]) -> list[LearntInvariant]:
        """Return the invariants of tensors that are not among *names*."""
        known = {*names, "training"}
        return [
            each
            for each in self.invariants
            if each.tensor not in known or (each.other and each.other not in known)
        ]


def phases_of(steps: int) -> dict[str, int]:
    """Return the training step at which each phase of a training begins.

    Example:
        >>> phases_of(600)
        {'begin': 0, 'middle': 60, 'end': 360}
    """
    return {"begin": 0, "middle": max(1, steps // 10), "end": max(2, steps * 6 // 10)}


def read_invariants(path: str | os.PathLike[str]) -> InvariantFile:
    """Read a file that ``tdbg learn`` has written, and people may have edited.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If there is no such file, or a line of it is none; names
            the line.
        UnsupportedFeature: If a later tdbg wrote it.
    """
    shown = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        msg = f"{shown}: no invariants can be read: {error.strerror or error}"
        raise ConfigurationError(msg) from error
    if len(content) > MAX_BYTES:
        msg = f"{shown}: a file of invariants has at most {MAX_BYTES >> 20} MiB"
        raise ConfigurationError(msg)
    lines = [
        (number, line)
        for number, line in enumerate(content.split(b"\n"), 1)
        if line.strip()
    ]
    if not lines:
        msg = f"{shown} is empty: write it by 'tdbg learn RUN --out {shown}'"
        raise ConfigurationError(msg)
    head = _head(shown, _document(shown, *lines[0]))
    invariants = [_invariant(shown, n, _document(shown, n, x)) for n, x in lines[1:]]
    return dataclasses.replace(head, invariants=tuple(invariants))


def _head(path: str, document: Mapping[str, Any]) -> InvariantFile:
    if document.get("format") != FORMAT:
        msg = (
            f"{path} has no invariants: the first line must say "
            f'"format": "{FORMAT}"; write the file by tdbg learn RUN --out {path}'
        )
        raise ConfigurationError(msg)
    version = document.get("version")
    if not is_integer(version) or version < 1:
        msg = f"{path}: line 1: version is {short(version)}; give {VERSION}"
        raise ConfigurationError(msg)
    if version > VERSION:
        msg = (
            f"{path} has version {version} of the format, and this tdbg reads version "
            f"{VERSION}; update tdbg, or learn the invariants again"
        )
        raise UnsupportedFeature(msg, file=path)
    steps = document.get("steps")
    if not is_integer(steps) or steps < 1:
        msg = f"{path}: line 1: steps is {short(steps)}; give a whole number from 1 on"
        raise ConfigurationError(msg)
    runs = tuple(str(each) for each in list_of(document.get("runs")))
    return InvariantFile(runs=runs, steps=steps, invariants=(), path=path)


def _document(path: str, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        document = load_json(line)
    except ValueError as error:
        msg = (
            f"{path}: line {number} is not JSON: {error}; a file of invariants has one "
            "object on each line"
        )
        raise ConfigurationError(msg) from error
    if not isinstance(document, Mapping):
        msg = f"{path}: line {number} is {short(document)}, and no object of JSON"
        raise ConfigurationError(msg)
    return document


def _invariant(path: str, number: int, given: Mapping[str, Any]) -> LearntInvariant:
    names = [each.name for each in _FIELDS]
    for name in given.keys() - set(names):
        msg = f"{path}: line {number}: no key {name!r}; {nearest(name, names)}"
        raise ConfigurationError(msg)
    for name, is_right, expected in _checks(given):
        if not is_right:
            shown = short(given.get(name))
            msg = f"{path}: line {number}: {name} is {shown}; give {expected}"
            raise ConfigurationError(msg)
    rows = given.get("rows", 0)
    return LearntInvariant(
        kind=given["kind"],
        tensor=given["tensor"],
        mode=given.get("mode", ModeKeys.TRAIN.name),
        what=given.get("what", ""),
        other=given.get("other", ""),
        value=given.get("value"),
        bounds=_bounds(given.get("bounds", {})) or {},
        seen=_bounds(given.get("seen", {})) or {},
        rows=rows if is_integer(rows) else 0,
        line=number,
    )


def _checks(given: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Yield each key, whether its value is right, and what it should be."""
    kind, tensor = given.get("kind"), given.get("tensor")
    yield "kind", kind in KINDS, f"one of {', '.join(KINDS)}"
    yield "tensor", isinstance(tensor, str) and tensor != "", "a name"
    modes = [*ModeKeys.__members__]
    yield "mode", given.get("mode", modes[0]) in modes, f"one of {', '.join(modes)}"
    whats, expected = WHATS.get(str(kind), ("",)), _VALUES.get(str(kind), type(None))
    yield "what", given.get("what", "") in whats, ", ".join(whats) or "none"
    yield "value", type(given.get("value")) is expected, _VALUE_WORDS[expected]
    other = given.get("other", "")
    is_name = isinstance(other, str) and (other != "") == (kind in _PAIRS)
    yield "other", is_name, "a tensor for kinds equal and order, and for no other kind"
    bounds = '{"middle": [least, most], ...}, with numbers or null'
    yield "bounds", _bounds(given.get("bounds", {})) is not None, bounds


def _bounds(given: object) -> dict[str, Bounds] | None:
    """Return bounds by phase; None if they are none."""
    if not isinstance(given, Mapping):
        return None
    found: dict[str, Bounds] = {}
    for phase, ends in mapping_of(given).items():
        if phase not in PHASES or not isinstance(ends, list) or len(ends) != 2:
            return None
        if not all(each is None or _is_number(each) for each in ends):
            return None
        least, most = ends
        if least is not None and most is not None and least > most:
            return None
        found[phase] = (least, most)
    return found


def _is_number(value: object) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _says(value: object) -> bool:
    return (value is not None and value not in ("", {}, 0)) or value is False
