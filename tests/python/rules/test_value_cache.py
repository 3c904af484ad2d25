"""What a rule can read beside columns: values, histograms, workers, facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun
from tdbg.config import Needs
from tdbg.rules import (
    Description,
    Engine,
    Evaluation,
    Idle,
    Rule,
    Status,
    Table,
    TensorInfo,
    Window,
    check,
    value_cache,
)
from tdbg.rules.engine import engine
from tdbg.rules.engine.missing_capture import NOTHING_KNOWN
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Rule):
    """Does with each table what it is told to."""

    read: Any
    seen: list[Any] = field(default_factory=list)

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({"weights"}))

    def selects(self, tensor: TensorInfo) -> bool:
        return tensor.role == "weight"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        for table in window.tables():
            self.seen.append(self.read(window, table))
        yield from ()


def run_of(n_steps: int = 20) -> FakeRun:
    run = FakeRun()
    for step in range(n_steps):
        run.step(step, {"0.weight": [1.0], "1.weight": [2.0]}, wall_ns=7 * step)
        if step % 5 == 0:
            run.value(step, "0.weight", [float(step)])
            run.histogram(step, "0.weight", [1.0, 2.0, step])
            run.by_worker(step, "0.weight", {"worker_0": [1.0], "worker_1": [np.nan]})
    return run


def seen(run: FakeRun, read: Any, n_rules: int = 1) -> list[Any]:
    rules = [Reading(read=read) for _ in range(n_rules)]
    report = check(run, rules)
    # They give no verdict, and it is said; nothing else went wrong.
    assert {status.message for status in report.statuses} == {NOTHING_KNOWN}
    assert len(report.statuses) == n_rules
    return rules[0].seen


def test_values_are_read_once_for_all_rules_and_windows():
    run = run_of()
    tensor = run.tensor_of("0.weight")

    def read(_: Window, table: Table) -> list[float]:
        values = [
            table.value("0.weight", step) for step in table.value_steps("0.weight")
        ]
        return [float(value[0]) for value in values if value is not None]

    assert seen(run, read, n_rules=3) == [[0.0, 5.0, 10.0, 15.0]]
    assert tensor.reads == 4
    tensor.reads = 0
    Engine(run, [Reading(read=read)], max_window=4).poll()
    assert tensor.reads == 4


def test_a_value_that_is_not_there_is_none_and_costs_no_look():
    run = run_of()

    def read(_: Window, table: Table) -> list[bool]:
        return [table.value("0.weight", int(step)) is None for step in table.steps]

    assert seen(run, read) == [[step % 5 != 0 for step in range(20)]]
    assert run.tensor_of("0.weight").reads == 4


def test_a_tensor_that_does_not_exist_has_no_value(monkeypatch: pytest.MonkeyPatch):
    run = run_of()
    assert seen(run, lambda _, table: table.histogram("1.weight", 0)) == [None]
    monkeypatch.setattr(value_cache, "FEW_STEPS", 1000)
    assert seen(run, lambda _, table: table.value("1.weight", 0)) == [None]


def test_histograms_and_rows_of_workers():
    (histogram,) = seen(run_of(), lambda _, table: table.histogram("0.weight", 5))
    assert int(histogram.counts.sum()) == 3
    (rows,) = seen(run_of(), lambda _, table: table.by_worker("0.weight", 5))
    assert {worker: row.nan for worker, row in rows.items()} == {
        "worker_0": 0,
        "worker_1": 1,
    }
    assert seen(run_of(), lambda _, table: table.by_worker("0.weight", 6)) == [{}]


def test_element_types_and_times():
    run = run_of(3)
    run.tensor_of("1.weight").dtype = "bfloat16"
    found = seen(run, lambda _, table: (table.dtypes, table.wall_ns.tolist()))
    assert found == [(("float32", "bfloat16"), [0, 7, 14])]
    chosen = seen(run, lambda _, table: table.select([1]).dtypes)
    assert chosen == [("bfloat16",)]


def test_what_is_kept_is_bounded():
    run = FakeRun()
    for step in range(100):
        run.value(step, "0.weight", np.zeros(1000))
    reader = value_cache.ValueCache(run, limit_bytes=100_000)
    reader.begin(1, first=0, last=0, horizon=99, names=["0.weight", "1.weight"])
    for step in range(100):
        reader.value("0.weight", step)
    assert reader._n_bytes <= 100_000
    assert reader._n_bytes == sum(size for _, size in reader._entries.values())
    assert 5 <= len(reader._entries) <= 12
    run.value(0, "1.weight", np.zeros(100_000))
    assert reader.value("1.weight", 0) is not None
    assert ("values", "1.weight", 0) not in reader._entries


def test_facts_are_those_of_the_step_and_not_later_ones():
    run = run_of(20)
    run.known_facts = [ModelInfo(step=3), ModelInfo(step=9)]
    run.n_workers = 4

    def read(window: Window, _: Table) -> tuple[list[int | None], int]:
        model_info = [window.model_info_at(step) for step in (2, 3, 8, 9, 19)]
        return [None if f is None else f.step for f in model_info], window.n_workers

    assert seen(run, read) == [([None, 3, 3, 9, 9], 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Still(Rule):
    """Reports that nothing has come for some seconds."""

    seconds: float = 5.0
    asked: list[Idle] = field(default_factory=list)

    @property
    def needs(self) -> Needs:
        return Needs()

    def evaluate(self, window: Window) -> Iterable[Evaluation]:
        for table in window.tables():
            yield table.judge(np.zeros(table.present.shape, np.int8), _never)

    def on_idle(self, quiet: Idle) -> Iterable[Evaluation]:
        self.asked.append(quiet)
        if quiet.seconds > self.seconds and not quiet.ended:
            yield quiet.judge(
                "training",
                Severity.ERROR,
                lambda: Description(message=f"nothing for {quiet.seconds:.0f} s"),
            )


def _never(_i: int, _j: int) -> Description:
    raise AssertionError


def test_rules_are_asked_about_silence_and_say_it_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "IDLE_SECONDS", 0.0)
    run = run_of(3)
    run.ended, run.status = False, "running"
    rule = Still()
    judging = Engine(run, (rule,))
    found = judging.poll() + judging.poll() + judging.poll()
    (finding,) = found
    assert (finding.tensor, finding.step, finding.severity) == (
        "training",
        2,
        Severity.ERROR,
    )
    (whole,) = judging.report().findings
    assert whole.n_steps == 1
    assert len(rule.asked) >= 2
    assert rule.asked[0].alive is True
    assert rule.asked[0].last_step == 2
    assert judging.report().statuses[0].status is Status.ISSUES_FOUND


@pytest.mark.parametrize(
    ("status", "alive", "ended"),
    [("closed", False, True), ("dead", False, False), ("unknown", None, False)],
)
def test_what_is_known_of_a_silent_training(
    status: str, alive: bool | None, ended: bool
):
    run = run_of(3)
    run.status = status
    rule = Still()
    report = check(run, (rule,))
    (quiet,) = rule.asked
    assert (quiet.alive, quiet.ended) == (alive, ended)
    assert len(report.findings) == (0 if ended else 1)


def test_a_rule_that_raises_about_silence_is_contained():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Raising(Still):
        def on_idle(self, quiet: Idle) -> Iterable[Evaluation]:
            msg = f"no {quiet.last_step}"
            raise RuntimeError(msg)

    report = check(run_of(3), (Raising(), Still()))
    assert [s.status for s in report.statuses] == [Status.ERROR, Status.NO_ISSUES_FOUND]
