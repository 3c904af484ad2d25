"""A run in memory that reads like a Trial, for tests of rules and engine."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from profile_fake import FakeProfile
from tdbg.errors import TensorUnavailable, TensorUnavailableForStep
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, Rule
from tdbg.rules.builtin.time.time_rule import shorter
from tdbg.run.findings import Finding
from tdbg.run.observations import Observation
from tdbg.stats.histogram import Histogram
from tdbg.stats.row_fields import FIELDS

PROMISE = re.compile(r"(over )?[\d.,]+% shorter steps")

STEP = np.dtype(
    [
        ("step", "i8"),
        ("mode", "u4"),
        ("complete", "?"),
        ("lossless", "?"),
        ("settled", "?"),
        ("skipped", "?"),
        ("wall_ns", "i8"),
        ("generation", "u4"),
    ]
)


def row_of(values: Any) -> dict[str, float]:
    """The statistics row of some values."""
    x = np.asarray(values, dtype=np.float64).ravel()
    finite = x[np.isfinite(x)]
    nothing = not len(finite)
    return {
        "count": len(x),
        "nan": int(np.isnan(x).sum()),
        "positive_infinity": int((x == np.inf).sum()),
        "negative_infinity": int((x == -np.inf).sum()),
        "zero": int((x == 0).sum()),
        "min": np.nan if nothing else finite.min(),
        "max": np.nan if nothing else finite.max(),
        "abs_min": np.nan if nothing else np.abs(finite).min(),
        "mean": np.nan if nothing else finite.mean(),
        "m2": float(((finite - finite.mean()) ** 2).sum()) if not nothing else 0.0,
        "l1": float(np.abs(finite).sum()),
        "l2": float(np.sqrt((finite**2).sum())),
    }


@dataclass
class FakeTensor:
    """A tensor of the run: rows and values by step."""

    role: str
    position: int
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    histograms: dict[int, Histogram] = field(default_factory=dict)
    of_workers: dict[int, dict[str, Any]] = field(default_factory=dict)
    dtype: str = "float32"
    first_shape: tuple[int, ...] = ()
    reads: int = 0

    def steps(self, _mode: object = None, what: str = "any") -> list[int]:
        found = {"values": self.values, "histograms": self.histograms}
        return sorted(found.get(what, {*self.rows, *self.values, *self.histograms}))

    def value(self, step: int, _mode: object = None) -> np.ndarray:
        return self._at(self.values, step)

    def values_between(self, start: int, stop: int) -> Mapping[int, np.ndarray]:
        within = [step for step in self.values if start <= step < stop]
        return _Between(self, within)

    def histogram(self, step: int, _mode: object = None) -> Histogram:
        return self._at(self.histograms, step)

    def workers(self, step: int, _mode: object = None) -> list[str]:
        return list(self._at(self.of_workers, step))

    def stats(self, step: int, _mode: object = None, worker: str | None = None) -> Any:
        return self._at(self.of_workers, step)[str(worker)]

    def _at(self, of_steps: dict[int, Any], step: int) -> Any:
        self.reads += 1
        if step not in of_steps:
            msg = f"nothing at {step}"
            raise TensorUnavailableForStep(msg)
        return of_steps[step]


class _Between(Mapping[int, np.ndarray]):
    """Values of some steps, each read when it is asked for."""

    def __init__(self, tensor: FakeTensor, steps: list[int]) -> None:
        self.tensor, self.found = tensor, sorted(steps)

    def __getitem__(self, step: int) -> np.ndarray:
        return self.tensor.value(step)

    def __contains__(self, step: object) -> bool:
        return step in self.found

    def __iter__(self) -> Iterator[int]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


class FakeRun:
    """A run that is written step by step, and can be shown up to some step.

    Args:
        every: Of how many steps of training one is recorded: tests count what is
            recorded, and the run has step ``every * n`` in the place of their n.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.path = ""
        self.tensors: dict[str, FakeTensor] = {}
        self.steps: dict[int, tuple[ModeKeys, bool, bool, bool, int]] = {}
        self.custom: dict[str, list[str]] = {}
        self.known_facts: list[Any] = []
        self.n_workers = 1
        # Steps from which on another process of the training recorded.
        self.resumed: list[int] = []
        self.started_ns = 0
        self.status = "closed"
        self.shown: int | None = None
        self.ended = True
        self.reads = 0
        self.profile = FakeProfile()
        self.reported: list[Any] = []
        self.settings: dict[str, Any] = {}
        # What a hook saw, had there been one.
        self.observed: list[Observation] = []

    def step(
        self,
        step: int,
        rows: dict[str, Any] | None = None,
        *,
        mode: ModeKeys = ModeKeys.TRAIN,
        complete: bool = True,
        lossless: bool = True,
        skipped: bool = False,
        wall_ns: int | None = None,
    ) -> None:
        """Record a step with the statistics of these values, by name."""
        step *= self.every
        for name, values in (rows or {}).items():
            tensor = self.tensor_of(name)
            if isinstance(values, dict):
                tensor.rows[step] = values
            else:
                tensor.first_shape = tensor.first_shape or np.shape(values)
                tensor.rows[step] = row_of(values)
        at = 10**9 * step if wall_ns is None else wall_ns
        self.steps[step] = (mode, complete, lossless, skipped, at)

    def value(self, step: int, name: str, values: Any) -> None:
        """Record raw values."""
        step *= self.every
        array = np.asarray(values)
        self.tensor_of(name).values[step] = array
        if array.dtype.kind in "iu":
            self.tensor_of(name).dtype = array.dtype.name

    def histogram(self, step: int, name: str, values: Any) -> None:
        """Record the histogram of these values."""
        step *= self.every
        array = np.asarray(values, dtype=np.float32)
        self.tensor_of(name).histograms[step] = Histogram.of(array)

    def by_worker(self, step: int, name: str, values: dict[str, Any]) -> None:
        """Record the rows that workers have of a tensor, of these values."""
        step *= self.every
        rows = {
            worker: SimpleNamespace(**row_of(content))
            for worker, content in values.items()
        }
        self.tensor_of(name).of_workers[step] = rows

    def units(
        self,
        step: int,
        name: str,
        active: Iterable[int],
        count: int,
        beyond: Iterable[int] | None = None,
    ) -> None:
        """Record a unit summary."""
        step *= self.every
        counts = np.array(list(active), dtype=np.uint64)
        full = np.full_like(counts, count)
        outside = np.zeros_like(counts) if beyond is None else np.array(list(beyond))
        summary = np.stack([counts, outside.astype(np.uint64), full])
        self.tensor_of(f"unit/{name}").values[step] = summary

    def scalar(self, step: int, name: str, value: float) -> None:
        """Record a scalar."""
        step *= self.every
        self.tensor_of(f"scalar/{name}").values[step] = np.float64(value)

    def tensor_of(self, name: str) -> FakeTensor:
        if name not in self.tensors:
            self.tensors[name] = FakeTensor(_role(name), len(self.tensors))
        return self.tensors[name]

    # What the engine reads.

    @property
    def loaded_all_steps(self) -> bool:
        is_shown = self.shown is None and self.profile.shown is None
        return self.ended and is_shown

    def refresh(self) -> bool:
        return True

    @contextlib.contextmanager
    def no_refresh(self) -> Iterator[FakeRun]:
        yield self

    def training_steps_at(self, global_steps: Sequence[int]) -> list[int]:
        return list(global_steps)

    def observations(self) -> tuple[Observation, ...]:
        return tuple(self.observed)

    def configuration(self) -> dict[str, Any]:
        return self.settings

    def workers(self) -> list[str]:
        return [f"worker_{rank}" for rank in range(self.n_workers)]

    def modes(self) -> list[ModeKeys]:
        return sorted({mode for mode, *_ in self.steps.values()})

    def attempts(self) -> list[Any]:
        return [SimpleNamespace(started_ns=self.started_ns)]

    def events(self, _kind: str | None = None) -> list[Any]:
        return self.reported

    def model_info(self) -> list[Any]:
        if self.every == 1:
            return self.known_facts
        return [
            dataclasses.replace(each, step=each.step * self.every)
            for each in self.known_facts
        ]

    def tensor_names(self) -> list[str]:
        last = np.inf if self.shown is None else self.shown
        return sorted(
            name
            for name, tensor in self.tensors.items()
            if any(step <= last for step in tensor.steps())
        )

    def tensor(self, name: str) -> FakeTensor:
        if name not in self.tensors:
            raise TensorUnavailable(name)
        return self.tensors[name]

    def collections(self) -> dict[str, Any]:
        return {
            name: SimpleNamespace(tensor_names=members)
            for name, members in self.custom.items()
        }

    def scalars(self, *, start: int, end: int) -> dict[str, Any]:
        return {
            name: SimpleNamespace(
                steps=np.array([s for s in tensor.values if start <= s < end]),
                values=np.array(
                    [v for s, v in tensor.values.items() if start <= s < end]
                ),
            )
            for name, tensor in self.tensors.items()
            if tensor.role == "scalar"
        }

    def step_table(
        self, start: int | None = None, *, limit: int | None = None
    ) -> np.ndarray:
        last = np.inf if self.shown is None else self.shown
        return np.array(
            [
                (
                    *(step, mode.value, complete, complete and lossless, True),
                    *(skipped, at, sum(first <= step for first in self.resumed)),
                )
                for step, (mode, complete, lossless, skipped, at) in sorted(
                    self.steps.items()
                )
                if (start or 0) <= step <= last
            ][:limit],
            dtype=STEP,
        )

    def columns(self, names: Any, steps: np.ndarray) -> Any:
        self.reads += 1
        rows = [[self.tensors[name].rows.get(s) for s in steps] for name in names]
        shape = len(names), len(steps)
        fields = [
            [(row or {}).get(field, np.nan) for of_name in rows for row in of_name]
            for field in FIELDS
        ]
        present = [row is not None for of_name in rows for row in of_name]
        return SimpleNamespace(
            present=np.array(present, dtype=bool).reshape(shape),
            fields=np.array(fields, dtype=np.float64).reshape(len(FIELDS), *shape),
        )

    def statistics(self, names: Any, *, start: int, end: int) -> Any:
        steps = sorted(
            {
                step
                for name in names
                for step in self.tensors[name].rows
                if start <= step < end and step in self.steps
            }
        )
        found = self.columns(names, np.array(steps, dtype=np.int64))
        return SimpleNamespace(
            names=list(names),
            steps=np.array(steps, dtype=np.int64),
            present=found.present,
            **dict(zip(FIELDS, found.fields, strict=True)),
        )


def _role(name: str) -> str:
    for prefix, role in (
        ("unit/", "unit_summary"),
        ("gradient/", "gradient"),
        ("buffer/", "buffer"),
        ("Model_input_", "model_input"),
        ("update/", "update"),
        ("scalar/", "scalar"),
        ("loss_", "loss"),
    ):
        if name.startswith(prefix):
            return role
    for part, role in (
        ("Loss_input_0", "prediction"),
        ("Loss_input_1", "label"),
        ("_input_", "input"),
        ("Loss_", "loss"),
        ("_output_", "output"),
    ):
        if part in name:
            return role
    return "bias" if "bias" in name else "weight"


def judge(run: FakeRun, *rules: Rule) -> list[Finding]:
    """Everything that the rules say about the run, offline."""
    return _checked(run, rules, Engine(run, rules).poll())


def judge_in_parts(run: FakeRun, cuts: Iterable[int], *rules: Rule) -> list[Finding]:
    """The same, with the run shown up to each of these steps in turn."""
    engine = Engine(run, rules)
    found: list[Finding] = []
    for cut in sorted(set(cuts)):
        run.shown = cut * run.every
        found += engine.poll()
    run.shown = None
    return _checked(run, rules, found + engine.poll())


def _checked(
    run: FakeRun, rules: Iterable[Rule], findings: list[Finding]
) -> list[Finding]:
    """Findings of declared severities, with steps as the test counts them.

    What is promised in words is promised in numbers.
    """
    declared = {rule.name: rule.severities for rule in rules}
    assert [each for each in findings if each.severity not in declared[each.rule]] == []
    for each in findings:
        promise = PROMISE.search(each.advice)
        gain = None if each.gain is None else shorter(each.gain)
        assert gain == (promise and promise[0]), each.advice
    return [
        dataclasses.replace(
            each,
            step=each.step // run.every,
            first_step=each.first_step // run.every,
            last_step=each.last_step // run.every,
        )
        for each in findings
    ]
