"""Learns invariants from healthy runs.

Implements docs/learnt-invariants.md.  A run is read as rules read it, by the engine,
so that what is learnt is what a rule will see.

Thread safety: none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.config.quantities import plural
from tdbg.errors import QueryError
from tdbg.modes import EVALUATION, TRAINING, ModeKeys
from tdbg.rules.engine.engine import Engine
from tdbg.rules.learnt.bounded import BOUNDED
from tdbg.rules.learnt.exact import EXACT
from tdbg.rules.learnt.invariants import InvariantFile, LearntInvariant, phases_of
from tdbg.rules.learnt.rows import FIELDS, Rows
from tdbg.rules.rule import Rule
from tdbg.rules.runner import Status
from tdbg.rules.window import Evaluation, TensorInfo, Window
from tdbg.run.model_info import ModelInfo
from tdbg.run.told_phases import world_size_of

__all__ = ["learn"]

# Roles of tensors that invariants are about.
ROLES = frozenset(
    {
        *("weight", "bias", "gradient", "update", "output", "input", "model_input"),
        *("prediction", "loss", "scalar"),
    }
)
_Number = TypeVar("_Number", np.float64, np.bool_)
# Fewer steps of training teach nothing.
FEWEST_STEPS = 10


def learn(
    *runs: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> InvariantFile:
    """Learn what holds in healthy runs, by a margin.

    Given several runs, what does not hold in each of them is left out, and ranges span
    all of them.

    Args:
        runs: Directories or URLs of healthy runs of one program; at least one.
        out: File to write; None: none.
        progress: Called with the number of steps that were read, and of all steps.

    Returns:
        The invariants; ``text()`` is what the file has.

    Raises:
        NotARun: If a directory is no run.
        QueryError: If there is too little in a run to learn from.
        StorageError: If a run cannot be read.
        OSError: If the file cannot be written.

    Example:
        tdbg.learn("runs/good", out="invariants.json")
    """
    if not runs:
        msg = "learn needs at least one healthy run"
        raise QueryError(msg)
    seen = [_see(os.fspath(run), progress) for run in runs]
    steps = min(each.steps for each in seen)
    found = [_learn(each, steps) for each in seen]
    invariants = tuple(_joined(found))
    if not invariants:
        msg = f"no invariant holds in {plural(len(runs), 'run')} of different programs"
        raise QueryError(msg)
    names = tuple(os.fspath(run) for run in runs)
    learnt = InvariantFile(runs=names, steps=steps, invariants=invariants)
    if out is not None:
        with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(learnt.text())
        learnt = replace(learnt, path=os.fspath(out))
    return learnt


@dataclass(slots=True)
class _Seen:
    """What a healthy run has: its rows by mode, cut where windows ended.

    Attributes:
        steps: How many training steps it had.
        n_ranks: How many ranks trained.
        parts: The rows of each mode.
    """

    steps: int = 0
    n_ranks: int = 1
    parts: dict[ModeKeys, list[Rows]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness(Rule):
    """Keeps the rows of a whole run; judges nothing."""

    seen: _Seen = field(default_factory=_Seen, hash=False)

    @property
    def needs(self) -> Needs:
        """Needs that are none: what was captured is enough."""
        return Needs()

    def selects(self, tensor: TensorInfo) -> bool:
        """Select tensors that invariants can be about."""
        return tensor.role in ROLES

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Keep the new rows."""
        for table in window.tables():
            rows = Rows.of(table, window, 1)
            start = table.start
            kept = {name: table[name][:, start:].copy() for name in FIELDS}
            infos = [
                (info, slice(max(0, columns.start - start), columns.stop - start))
                for info, columns in rows.infos
                if columns.stop > start
            ]
            part = replace(
                rows,
                ages=rows.ages[start:],
                known=rows.known[:, start:].copy(),
                fields=kept.__getitem__,
                infos=tuple(infos),
                differ=None if rows.differ is None else rows.differ[start:],
            )
            self.seen.parts.setdefault(table.mode, []).append(part)
        yield from ()


def _see(run: str, progress: Callable[[int, int], None] | None) -> _Seen:
    from tdbg.trial import create_trial

    trial = create_trial(run)
    witness, total = _Witness(), len(trial.step_table())
    engine = Engine(trial, [witness], record=False, isolate=False)

    def update() -> None:
        if progress is not None:
            report = engine.report()
            progress(report.n_recorded, total)

    engine.on_window = update
    engine.poll()
    (status,) = engine.finish().statuses
    if status.status is Status.ERROR:
        raise RuntimeError(status.message)
    seen = witness.seen
    seen.n_ranks = world_size_of(trial.configuration())
    trained = [part for mode in TRAINING for part in seen.parts.get(mode, ())]
    n = sum(len(part.ages) for part in trained)
    if n < FEWEST_STEPS:
        msg = (
            f"{run} has {plural(n, 'recorded step')} of training; tdbg learns from "
            f"{FEWEST_STEPS} or more"
        )
        raise QueryError(msg)
    if not any(part.known.any() for part in trained):
        msg = f"{run} has no statistics to learn from; record it with td.watch"
        raise QueryError(msg)
    seen.steps = 1 + max(int(part.ages.max()) for part in trained)
    return seen


def _learn(seen: _Seen, steps: int) -> dict[tuple[str, ...], LearntInvariant]:
    """Return what holds in one run, by its key."""
    found: dict[tuple[str, ...], LearntInvariant] = {}
    evaluated = [part.ages for mode in EVALUATION for part in seen.parts.get(mode, ())]
    for parts in seen.parts.values():
        rows = replace(
            _whole(parts),
            phase_starts=phases_of(steps),
            evaluated=np.concatenate([*evaluated, np.zeros(0, np.int64)]),
        )
        if seen.n_ranks == 1:
            rows = replace(rows, differ=None)
        for relation in (*EXACT, *BOUNDED):
            found.update((each.key, each) for each in relation.learn(rows))
    return found


def _joined(
    found: Sequence[Mapping[tuple[str, ...], LearntInvariant]],
) -> Iterator[LearntInvariant]:
    """Yield what holds in all runs, by kind."""
    common = [key for key in found[0] if all(key in each for each in found)]
    for relation in (*EXACT, *BOUNDED):
        for key in common:
            if key[0] == relation.kind:
                joined = relation.join([each[key] for each in found])
                if joined is not None:
                    yield joined


def _whole(parts: Sequence[Rows]) -> Rows:
    """Return the rows of a whole run; a name that came later has no rows before."""
    names = tuple(
        dict.fromkeys(name for part in reversed(parts) for name in part.names)
    )
    place = {name: i for i, name in enumerate(names)}
    ends = np.cumsum([len(part.ages) for part in parts]).tolist()
    at = [
        (np.array([place[name] for name in part.names], np.intp), end)
        for part, end in zip(parts, ends, strict=True)
    ]
    shape = len(names), ends[-1]
    fields = {
        name: _spread([part.fields(name) for part in parts], at, np.full(shape, np.nan))
        for name in FIELDS
    }
    known = _spread([part.known for part in parts], at, np.zeros(shape, bool))
    described = _described(parts)
    differ = [part.differ for part in parts if part.differ is not None]
    return replace(
        parts[-1],
        names=names,
        roles=tuple(described[name][0] for name in names),
        dtypes=tuple(described[name][1] for name in names),
        ages=np.concatenate([part.ages for part in parts]),
        known=known,
        fields=fields.__getitem__,
        infos=tuple(_moved(parts, ends)),
        differ=np.concatenate(differ) if differ else None,
    )


def _described(parts: Sequence[Rows]) -> dict[str, tuple[str, str]]:
    """Return role and element type of each name."""
    found: dict[str, tuple[str, str]] = {}
    for part in parts:
        both = zip(part.roles, part.dtypes, strict=True)
        found.update(zip(part.names, both, strict=True))
    return found


def _spread(
    arrays: Sequence[NDArray[_Number]],
    at: Sequence[tuple[NDArray[np.intp], int]],
    whole: NDArray[_Number],
) -> NDArray[_Number]:
    """Put the cells of each part in their places; *at* has its rows, and its end."""
    for array, (rows, end) in zip(arrays, at, strict=True):
        whole[rows, end - array.shape[1] : end] = array
    return whole


def _moved(
    parts: Sequence[Rows], ends: Sequence[int]
) -> Iterator[tuple[ModelInfo | None, slice]]:
    """Yield the model infos of all parts, with their columns in the whole run."""
    for part, end in zip(parts, ends, strict=True):
        begin = end - len(part.ages)
        for info, columns in part.infos:
            yield info, slice(begin + columns.start, begin + columns.stop)
