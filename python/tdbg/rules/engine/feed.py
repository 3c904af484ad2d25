"""Windows of a run, each step once, read once for all rules.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.facts import Facts
from tdbg.modes import ModeKeys
from tdbg.rules._base import Rule
from tdbg.rules.engine.block import Block, NewSteps, Ordinals
from tdbg.rules.engine.cells import CellReader
from tdbg.rules.engine.history import History
from tdbg.rules.engine.scalar_rows import SCALAR, add_scalars
from tdbg.rules.engine.unit_history import PREFIX, UnitHistory
from tdbg.rules.source import Source
from tdbg.rules.table import TensorInfo
from tdbg.rules.window import Window

__all__ = ["Feed"]

# Entries of names x steps that are read at once: 14 MB of rows.  A column of them is
# 1.2 MB: fewer, and the work that is done once a window weighs more; more, and rules
# work beyond the cache of the processor.
CELLS = 150_000
# Steps in a window, at most, however few tensors there are: what rules work out for a
# window is bounded.
WINDOW_STEPS = 1000
# How long a step of evaluation waits for one of training with a lower number.
PATIENCE_SECONDS = 5.0

# Tensors, look back and anchor of a rule.
_Key = tuple[frozenset[str], int, int]

EVALUATION = (ModeKeys.EVAL.value, ModeKeys.PREDICT.value)


class Feed:
    """Reads what is new in a run and shows each rule its part.

    A step is taken in when nothing more will come for it, and never again.

    Args:
        source: The run.
        rules: Whose needs decide what is read and how much of it is kept.
        max_steps: Steps in a window, at most; None: as many as fit in memory.

    Attributes:
        failures: Rules that raised when they were asked what to read, by their index.
    """

    def __init__(
        self, source: Source, rules: Sequence[Rule], max_steps: int | None = None
    ) -> None:
        self._source = source
        self._rules = rules
        self._max_steps = max_steps
        self.failures: dict[int, Exception] = {}
        self._chosen: list[frozenset[str]] = [frozenset() for _ in rules]
        self._looks = [self._look(i) for i in range(len(rules))]
        # Histories by what rules have in common, and which one each rule has.
        self._keys: list[_Key] = [(frozenset(), *look) for look in self._looks]
        self._histories = {key: History(*key[1:]) for key in self._keys}
        self._cells = CellReader(source)
        self._facts: tuple[Facts, ...] | None = None
        self._n_workers = 1
        self._last: tuple[ModeKeys, int] | None = None
        self._units = UnitHistory()
        self._next_step = 0
        self._window = (-1, -1)
        self._n_new = 0
        self._waiting_since: float | None = None
        self._known: dict[str, TensorInfo] = {}
        self._position: dict[str, int] = {}
        self._seen: tuple[str, ...] = ()
        self._columns: list[TensorInfo] = []
        self._names: list[str] = []
        self._ordinals = Ordinals()
        self._unit_tensors: list[TensorInfo] = []

    @property
    def next_step(self) -> int:
        """The first step that was not taken in yet."""
        return self._next_step

    @property
    def last(self) -> tuple[ModeKeys, int] | None:
        """Mode of the last step that was taken in, and when it was recorded, in ns."""
        return self._last

    @property
    def n_new(self) -> int:
        """How many steps the last window brought."""
        return self._n_new

    def unseen(self) -> list[bool]:
        """Of each rule, whether there was no tensor that it wants to see."""
        return [not chosen for chosen in self._chosen]

    def pending(self) -> bool:
        """Whether there are steps that could be taken in."""
        return len(self._new_steps()) > 0

    def advance(self) -> bool:
        """Take in the next window; False when there is nothing new."""
        new = self._new_steps()
        if not len(new):
            return False
        for history in self._histories.values():
            history.trim()
        self._units.trim()
        self._refresh_tensors()
        limit = max(1, min(WINDOW_STEPS, CELLS // max(1, len(self._columns))))
        limit = min(limit, self._max_steps or limit, self._units.max_steps)
        horizon = int(new.steps[-1])
        new = new.take(slice(limit))
        first, last = int(new.steps[0]), int(new.steps[-1])
        self._cells.begin(len(new), first, last, horizon, self._known)
        self._facts = None
        self._n_workers = max(1, len(self._source.workers()))
        self._last = ModeKeys(int(new.modes[-1])), int(new.wall_ns[-1])
        blocks = self._read(new)
        for history in self._histories.values():
            history.append(blocks)
        self._units.append(new, self._unit_tensors, self._cells.new_values)
        self._window = (first, last)
        self._n_new = len(new)
        self._next_step = last + 1
        return True

    def window(self, i: int) -> Window:
        """The window that was taken in last, as the rule of that index sees it."""
        first, last = self._window
        return Window(
            first=first,
            last=last,
            n_workers=self._n_workers,
            run=str(getattr(self._source, "path", "")),
            _tables=self._histories[self._keys[i]].tables(self._cells),
            _unit_tables=self._units.tables(self._chosen[i]),
            _facts=self._read_facts,
        )

    def release(self, i: int) -> None:
        """The rule of that index has judged the window: drop what none after it asks.

        What was cut out for it is freed and taken again for the next one, while it is
        still in the cache of the processor.
        """
        if self._keys[i] not in self._keys[i + 1 :]:
            self._histories[self._keys[i]].release()

    def _read(self, new: NewSteps) -> dict[int, Block]:
        """The rows at these steps, those of scalars among them, by mode."""
        has_scalars = any(tensor.role == SCALAR for tensor in self._columns)
        start, end = int(new.steps[0]), int(new.steps[-1]) + 1
        scalars = self._source.scalars(start=start, end=end) if has_scalars else {}
        blocks = {}
        for of_mode in new.by_mode():
            columns = self._source.columns(self._names, of_mode.steps)
            add_scalars(columns, self._names, of_mode.steps, scalars)
            blocks[int(of_mode.modes[0])] = Block(of_mode, columns, self._ordinals)
        return blocks

    def _new_steps(self) -> NewSteps:
        table = self._source.step_table(start=self._next_step)
        open_steps = np.flatnonzero(~table["settled"])
        if len(open_steps):
            table = table[: open_steps[0]]
        table = table[: self._n_in_order(table)]
        return NewSteps(
            steps=table["step"].astype(np.int64),
            modes=table["mode"].astype(np.int64),
            usable=table["complete"] & table["lossless"],
            skipped=table["skipped"].astype(bool),
            wall_ns=table["wall_ns"].astype(np.int64),
            generations=table["generation"].astype(np.int64),
        )

    def _n_in_order(self, table: NDArray[np.void]) -> int:
        """How many of these steps no lower one can follow any more.

        A step of evaluation within one of training has the higher number and may end
        first.  So what follows the last training step must follow it without a gap;
        beyond a gap it waits for the next training step, but not for ever.
        """
        trained = np.flatnonzero(~np.isin(table["mode"], EVALUATION))
        sure = int(trained[-1]) + 1 if len(trained) else 0
        steps = table["step"][sure:]
        first = int(table["step"][sure - 1]) + 1 if sure else self._next_step
        gaps = np.flatnonzero(steps != first + np.arange(len(steps)))
        if not len(gaps) or self._source.loaded_all_steps:
            self._waiting_since = None
            return len(table)
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > PATIENCE_SECONDS:
            return len(table)
        return sure + int(gaps[0])

    def _refresh_tensors(self) -> None:
        names = tuple(self._source.tensor_names())
        if names == self._seen:
            return
        self._seen = names
        members: dict[str, set[str]] = {}
        for collection, content in self._source.collections().items():
            for name in content.tensor_names:
                members.setdefault(name, set()).add(collection)
        for name in names:
            # A tensor that is known stays what it was, so that it is judged alike
            # whenever it was first seen.
            if name not in self._known:
                tensor = self._source.tensor(name)
                self._position[name] = tensor.position
                self._known[name] = TensorInfo(
                    name=name,
                    role=tensor.role,
                    collections=frozenset(members.get(name, ())),
                    dtype=tensor.dtype,
                )
        self._chosen = [self._choice(i) for i in range(len(self._rules))]
        chosen = frozenset[str]().union(*self._chosen)
        wanted = sorted(
            (self._known[name] for name in names if name in chosen),
            key=lambda tensor: (self._position[tensor.name], tensor.name),
        )
        self._unit_tensors = [t for t in wanted if t.name.startswith(PREFIX)]
        looks = zip(self._looks, self._chosen, strict=True)
        self._units.look_back = max(
            (
                look_back
                for (look_back, _), choice in looks
                if any(tensor.name in choice for tensor in self._unit_tensors)
            ),
            default=0,
        )
        self._set_columns([t for t in wanted if not t.name.startswith(PREFIX)])

    def _set_columns(self, tensors: list[TensorInfo]) -> None:
        """Read these from now on, which include those so far."""
        before = {name: i for i, name in enumerate(self._names)}
        self._columns = tensors
        self._names = [tensor.name for tensor in tensors]
        self._ordinals.set_tensors(
            np.array([before.get(name, -1) for name in self._names], np.intp)
        )
        keys = [(self._chosen[i], *self._looks[i]) for i in range(len(self._rules))]
        old, self._histories = self._histories, {}
        for i, key in enumerate(keys):
            if key not in self._histories:
                rows = [j for j, name in enumerate(self._names) if name in key[0]]
                self._histories[key] = old[self._keys[i]].of(
                    [tensors[j] for j in rows], np.array(rows, dtype=np.intp)
                )
        self._keys = keys

    def _look(self, i: int) -> tuple[int, int]:
        """How far a rule looks back, and at how many first rows."""
        try:
            return int(self._rules[i].look_back), int(self._rules[i].anchor)
        except Exception as error:  # A rule is anybody's code.
            self.failures[i] = error
            return 0, 0

    def _choice(self, i: int) -> frozenset[str]:
        """What a rule wants to see; nothing more once it has failed."""
        if i in self.failures:
            return frozenset()
        rule = self._rules[i]
        try:
            return frozenset(n for n, t in self._known.items() if rule.selects(t))
        except Exception as error:  # A rule is anybody's code.
            self.failures[i] = error
            return self._chosen[i]

    def _read_facts(self) -> tuple[Facts, ...]:
        """What is known of the model, by step, once a window and if asked for."""
        if self._facts is None:
            self._facts = tuple(self._source.facts())
        return self._facts
