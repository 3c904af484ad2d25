"""Cuts a run into windows: each step is read once for all rules.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.engine.block import (
    NO_STEPS,
    SCALAR,
    Block,
    NewSteps,
    Ordinals,
    add_scalars,
)
from tdbg.rules.engine.history import PREFIX, History, UnitHistory
from tdbg.rules.rule import Rule
from tdbg.rules.table import TensorInfo
from tdbg.rules.value_cache import ValueCache
from tdbg.rules.window import Window
from tdbg.run.model_info import ModelInfo
from tdbg.run.observations import Observation

if TYPE_CHECKING:
    from tdbg.trial import Trial

__all__ = ["Feed"]

# Rows (tensors x steps) of a window: 14 MB, or 1.2 MB for one field.  With fewer rows
# the work per window weighs more; with more, rules leave the cache of the processor.
WINDOW_ROWS = 150_000
# Steps of a window, at most: bounds what rules compute for a window of few tensors.
WINDOW_STEPS = 1000
# Rows of the table of steps that are read ahead, at first: 7 MB.
AHEAD_ROWS = 1 << 16
# How long an evaluation step waits for a training step with a lower number.
PATIENCE_SECONDS = 5.0

# What decides on a rule's history: tensors, lookback and head_rows.
_Key = tuple[frozenset[str], int, int]

EVALUATION = (ModeKeys.EVAL.value, ModeKeys.PREDICT.value)


class Feed:
    """Reads the new steps of a run and makes a window for each rule.

    A step is read once, as soon as it is settled.

    Args:
        trial: The run.
        rules: The tensors that they select are read; the number of rows that they
            look back at is kept.
        max_steps: Largest number of steps in a window; None: what fits in memory.

    Attributes:
        failures: Exceptions of ``selects``, ``lookback`` and ``head_rows``, by index
            of the rule.
    """

    def __init__(
        self, trial: Trial, rules: Sequence[Rule], max_steps: int | None = None
    ) -> None:
        self._trial = trial
        self._rules = rules
        self._max_steps = max_steps
        self.failures: dict[int, Exception] = {}
        self._selected: list[frozenset[str]] = [frozenset() for _ in rules]
        self._reaches = [self._reach(i) for i in range(len(rules))]
        # Rules with the same key share a history; each rule's key, by index.
        self._keys: list[_Key] = [(frozenset(), *reach) for reach in self._reaches]
        self._histories = {key: History(*key[1:]) for key in self._keys}
        self._values = ValueCache(trial)
        self._model_info: tuple[ModelInfo, ...] | None = None
        self._observations: tuple[Observation, ...] | None = None
        self._n_workers = 1
        self._last: tuple[ModeKeys, int] | None = None
        self._units = UnitHistory()
        self._next_step = 0
        # New steps that were read and are in no window yet, of one poll.
        self._ahead = NO_STEPS
        self._window = (-1, -1)
        self._n_new = self._n_evaluated = 0
        self._waiting_since: float | None = None
        self._infos: dict[str, TensorInfo] = {}
        self._position: dict[str, int] = {}
        self._last_names: tuple[str, ...] = ()
        self._columns: list[TensorInfo] = []
        self._names: list[str] = []
        self._ordinals = Ordinals()
        self._unit_tensors: list[TensorInfo] = []

    @property
    def next_step(self) -> int:
        """The first step that was not read yet."""
        return self._next_step

    @property
    def last(self) -> tuple[ModeKeys, int] | None:
        """Mode of the last step read, and when it was recorded, in ns since 1970."""
        return self._last

    @property
    def n_new(self) -> int:
        """How many new steps of training the current window has."""
        return self._n_new

    @property
    def n_evaluated(self) -> int:
        """How many new steps of evaluation and prediction it has."""
        return self._n_evaluated

    def blind(self) -> list[bool]:
        """Return for each rule whether it selected no tensor."""
        return [not selected for selected in self._selected]

    def pending(self) -> bool:
        """Return whether there are new steps to read."""
        return len(self._ahead) > 0 or len(self._new_steps()) > 0

    def advance(self) -> bool:
        """Read the next window; return False if there are no new steps."""
        new = self._ahead if len(self._ahead) else self._new_steps()
        if not len(new):
            return False
        for history in self._histories.values():
            history.trim()
        self._units.trim()
        self._refresh_tensors()
        limit = max(1, min(WINDOW_STEPS, WINDOW_ROWS // max(1, len(self._columns))))
        limit = min(limit, self._max_steps or limit)
        if self._unit_tensors:
            limit = min(limit, self._units.max_steps)
        horizon = int(new.steps[-1])
        new, self._ahead = new.take(slice(limit)), new.take(slice(limit, None))
        first, last = int(new.steps[0]), int(new.steps[-1])
        self._values.begin(len(new), first, last, horizon, self._infos)
        self._model_info = self._observations = None
        self._n_workers = max(1, len(self._trial.workers()))
        self._last = ModeKeys(int(new.modes[-1])), int(new.wall_ns[-1])
        blocks = self._read(new)
        for history in self._histories.values():
            history.append(blocks)
        self._units.append(new, self._unit_tensors, self._values.new_values)
        self._window = (first, last)
        self._n_evaluated = int(np.isin(new.modes, EVALUATION).sum())
        self._n_new = len(new) - self._n_evaluated
        self._next_step = last + 1
        return True

    def window(self, i: int) -> Window:
        """Return the current window for the rule of that index."""
        first, last = self._window
        return Window(
            first=first,
            last=last,
            n_workers=self._n_workers,
            run=str(getattr(self._trial, "path", "")),
            _tables=self._histories[self._keys[i]].tables(self._values),
            _unit_tables=self._units.tables(self._selected[i]),
            _infos=self._read_model_info,
            _observed=self._read_observations,
            _training_step=self._training_step,
        )

    def _training_step(self, step: int) -> int:
        (found,) = self._trial.training_steps_at([step])
        return int(found)

    def release(self, i: int) -> None:
        """Drop the tables of the rule of that index, unless a later rule shares them.

        Their memory is used again for the next rule while it is still in the cache of
        the processor.
        """
        if self._keys[i] not in self._keys[i + 1 :]:
            self._histories[self._keys[i]].release()

    def _read(self, new: NewSteps) -> dict[int, Block]:
        """Read the rows of tensors and scalars at these steps, by mode."""
        has_scalars = any(tensor.role == SCALAR for tensor in self._columns)
        start, end = int(new.steps[0]), int(new.steps[-1]) + 1
        scalars = self._trial.scalars(start=start, end=end) if has_scalars else {}
        blocks = {}
        for of_mode in new.by_mode():
            columns = self._trial.columns(self._names, of_mode.steps)
            fields, present = columns.fields, columns.present
            add_scalars(fields, present, self._names, of_mode.steps, scalars)
            blocks[int(of_mode.modes[0])] = Block(
                of_mode, fields, present, self._ordinals
            )
        return blocks

    def _new_steps(self) -> NewSteps:
        n_rows = AHEAD_ROWS
        while True:
            table = self._trial.step_table(start=self._next_step, limit=n_rows)
            goes_on = len(table) == n_rows
            open_steps = np.flatnonzero(~table["settled"])
            if len(open_steps):
                table, goes_on = table[: open_steps[0]], False
            n_in_order = self._n_in_order(table, goes_on=goes_on)
            if n_in_order or not goes_on:
                break
            n_rows *= 2  # Evaluation all along.
        table = table[:n_in_order]
        return NewSteps(
            steps=table["step"].astype(np.int64),
            modes=table["mode"].astype(np.int64),
            usable=table["complete"] & table["lossless"],
            skipped=table["skipped"].astype(bool),
            wall_ns=table["wall_ns"].astype(np.int64),
            generations=table["generation"].astype(np.int64),
        )

    def _n_in_order(self, table: NDArray[np.void], *, goes_on: bool) -> int:
        """How many of these steps are final: no step with a lower number will come.

        An evaluation step inside a training step has the higher number and may end
        first.  So steps after the last training step are final only up to the first
        gap in their numbers; those after the gap wait for the next training step, but
        no longer than ``PATIENCE_SECONDS``.  Of a table that goes on, those that the
        rest may decide on are not counted.
        """
        trained = np.flatnonzero(~np.isin(table["mode"], EVALUATION))
        sure = int(trained[-1]) + 1 if len(trained) else 0
        if goes_on:
            return sure
        steps = table["step"][sure:]
        first = int(table["step"][sure - 1]) + 1 if sure else self._next_step
        gaps = np.flatnonzero(steps != first + np.arange(len(steps)))
        if not len(gaps) or self._trial.loaded_all_steps:
            self._waiting_since = None
            return len(table)
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > PATIENCE_SECONDS:
            return len(table)
        return sure + int(gaps[0])

    def _refresh_tensors(self) -> None:
        names = tuple(self._trial.tensor_names())
        if names == self._last_names:
            return
        self._last_names = names
        members: dict[str, set[str]] = {}
        for collection, content in self._trial.collections().items():
            for name in content.tensor_names:
                members.setdefault(name, set()).add(collection)
        for name in names:
            # The info of a tensor never changes, so that verdicts on it do not
            # depend on when a window was read.
            if name not in self._infos:
                tensor = self._trial.tensor(name)
                self._position[name] = tensor.position
                self._infos[name] = TensorInfo(
                    name=name,
                    role=tensor.role,
                    collections=frozenset(members.get(name, ())),
                    dtype=tensor.dtype,
                    shape=tensor.first_shape,
                )
        self._selected = [self._select(i) for i in range(len(self._rules))]
        selected = frozenset[str]().union(*self._selected)
        requested = sorted(
            (self._infos[name] for name in names if name in selected),
            key=lambda tensor: (self._position[tensor.name], tensor.name),
        )
        self._unit_tensors = [t for t in requested if t.name.startswith(PREFIX)]
        reaches = zip(self._reaches, self._selected, strict=True)
        self._units.lookback = max(
            (
                lookback
                for (lookback, _), of_rule in reaches
                if any(tensor.name in of_rule for tensor in self._unit_tensors)
            ),
            default=0,
        )
        self._set_columns([t for t in requested if not t.name.startswith(PREFIX)])

    def _set_columns(self, tensors: list[TensorInfo]) -> None:
        """Change the tensors to read; the new ones include the old ones."""
        before = {name: i for i, name in enumerate(self._names)}
        self._columns = tensors
        self._names = [tensor.name for tensor in tensors]
        self._ordinals.set_tensors(
            np.array([before.get(name, -1) for name in self._names], np.intp)
        )
        keys = [(self._selected[i], *self._reaches[i]) for i in range(len(self._rules))]
        old, self._histories = self._histories, {}
        for i, key in enumerate(keys):
            if key not in self._histories:
                rows = [j for j, name in enumerate(self._names) if name in key[0]]
                self._histories[key] = old[self._keys[i]].of(
                    [tensors[j] for j in rows], np.array(rows, dtype=np.intp)
                )
        self._keys = keys

    def _reach(self, i: int) -> tuple[int, int]:
        """The ``lookback`` and ``head_rows`` of a rule."""
        try:
            return int(self._rules[i].lookback), int(self._rules[i].head_rows)
        except Exception as error:  # User code: may raise anything.
            self.failures[i] = error
            return 0, 0

    def _select(self, i: int) -> frozenset[str]:
        """The tensors that a rule selects; none once it has failed."""
        if i in self.failures:
            return frozenset()
        rule = self._rules[i]
        try:
            return frozenset(n for n, t in self._infos.items() if rule.selects(t))
        except Exception as error:  # User code: may raise anything.
            self.failures[i] = error
            return self._selected[i]

    def _read_model_info(self) -> tuple[ModelInfo, ...]:
        """Read the model info of the run, at most once a window."""
        if self._model_info is None:
            self._model_info = tuple(self._trial.model_info())
        return self._model_info

    def _read_observations(self) -> tuple[Observation, ...]:
        """Read what hooks saw, at most once a window."""
        if self._observations is None:
            self._observations = tuple(self._trial.observations())
        return self._observations
