"""Rules of somebody else cannot harm the engine, the other rules or the machine."""

from __future__ import annotations

import gc
import os
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hostile_rules import Foreign, Hostile, Refusing
from run_builder import RunBuilder
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, ExplodingTensor, Limits, Report, Rule, Status
from tdbg.rules.sandbox import transport
from tdbg.trial import create_trial

N_STEPS, BROKEN_AT = 30, 10
# Little of everything, so that tests are quick.
SMALL = Limits(seconds=10.0, memory_bytes=1 << 30, processes=12, restarts=0)
# What a rule does, and what is said of it.
MISDEEDS = [
    ("raise_", "RuntimeError: no more"),
    ("segfault", "killed by SIGSEGV.*it printed: about to segfault"),
    ("loop", "made no progress for 1 s"),
    ("ignore_sigterm", "made no progress for 1 s"),
    ("leak", "(MemoryError.*may use|more than) 1024 MB"),
    ("leak_in_children", "more than 1024 MB"),
    ("fork", "more than 12 processes"),
    ("print_", "made no progress for 1 s; it printed: x*$"),
    ("exit", "ended with exit code 7"),
]
HANGING = {"loop", "ignore_sigterm", "print_"}
# Of a hundred so many judge at the same time: those that hang are waited for together,
# and those that take much are few.
AT_ONCE = {"loop": 5, "ignore_sigterm": 5, "print_": 5} | dict.fromkeys(
    ("leak", "leak_in_children", "fork"), 2
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps with a weight that is NaN for a while."""
    path = tmp_path_factory.mktemp("isolation") / "run"
    with RunBuilder(path) as builder:
        for step in range(N_STEPS):
            value = np.nan if BROKEN_AT <= step < BROKEN_AT + 5 else 1.0
            sick, sound = (np.full(3, x, dtype=np.float32) for x in (value, step))
            builder.step(step, {"a.weight": sick, "b.weight": sound})
    return path


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks the processes that are started, of which none may be left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("TDBG_TEST_MARK", value)
    yield value
    gc.collect()
    deadline = time.monotonic() + 60
    while marked(value) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marked(value) == []


def marked(value: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if value.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def judge(run: Path, *rules: Rule, limits: Limits = SMALL, **options: bool) -> Report:
    engine = Engine(run, rules, record=False, limits=limits, **options)
    engine.poll()
    engine.poll_idle()
    return engine.finish()


def test_a_rule_finds_the_same_in_a_process_of_its_own(run: Path, mark: str):
    apart = judge(run, Foreign(), limits=Limits())
    here = judge(run, Foreign(), isolate=False)
    assert apart == here
    assert [(f.tensor, f.first_step, f.n_steps) for f in apart.findings] == [
        ("a.weight", BROKEN_AT, 5)
    ]
    engine = Engine(run, Foreign(), record=False)
    (first, last) = engine.poll()
    assert (first.phase, last.phase) == ("begin", "end")
    assert len(marked(mark)) >= 2
    engine.finish()


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(("what", "message"), MISDEEDS)
def test_a_rule_that_misbehaves_is_an_error_and_the_others_go_on(
    run: Path, what: str, message: str
):
    misbehave(run, what, message)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(("what", "message"), MISDEEDS)
def test_a_hundred_rules_that_misbehave(run: Path, what: str, message: str):
    at_once = AT_ONCE.get(what, 10)
    for _ in range(100 // at_once):
        misbehave(run, what, message, at_once)


def misbehave(run: Path, what: str, message: str, n: int = 1) -> None:
    """Judge by so many such rules and by a good one."""
    limits = replace(SMALL, seconds=1.0 if what in HANGING else 10.0)
    rules = [Hostile(what=what) for _ in range(n)]
    report = judge(run, *rules, ExplodingTensor(), limits=limits)
    *every, good = report.statuses
    assert len(every) == n
    for hostile in every:
        assert hostile.status is Status.ERROR
        assert re.search(message, hostile.message), hostile.message
        assert len(hostile.message) < 3000
    assert good.status is Status.ISSUES_FOUND
    assert [(f.rule, f.tensor) for f in report.findings] == [
        ("ExplodingTensor", "a.weight")
    ]


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Foreign(names=("outputs",), mode=ModeKeys.EVAL), "outputs were not captured"),
        (Foreign(mode=ModeKeys.EVAL), "the run has too little data for a verdict"),
        (Foreign(limit=9.0), ""),
    ],
)
def test_a_rule_apart_says_what_was_wanting_as_one_here(
    run: Path, rule: Rule, said: str
):
    (apart,) = judge(run, rule).statuses
    (here,) = judge(run, rule, isolate=False).statuses
    assert apart == here
    assert apart.status is Status.NO_ISSUES_FOUND
    assert said in apart.message
    assert bool(said) == bool(apart.message)


@pytest.mark.usefixtures("mark")
def test_verdicts_are_counted_apart_as_here(run: Path):
    engines = [
        Engine(run, Foreign(), record=False, isolate=apart) for apart in (True, False)
    ]
    for engine in engines:
        engine.poll()
        assert engine.judged() == {"Foreign": 2 * N_STEPS}
        engine.finish()


@pytest.mark.usefixtures("mark")
def test_a_child_that_is_left_behind_goes_with_its_rule(run: Path):
    report = judge(run, Hostile(what="leave_a_child"))
    assert report.statuses[0].status is Status.NO_ISSUES_FOUND


@pytest.mark.usefixtures("mark")
def test_a_process_is_restarted_a_few_times(run: Path):
    limits = Limits(restarts=2)
    engine = Engine(run, Hostile(what="exit", at=20), limits=limits, max_window=10)
    engine.poll()
    status = engine.finish().statuses[0]
    assert status.message.startswith("its process ended with exit code 7 (3 times)")
    assert create_trial(run).rule_statuses()["Hostile"] == status.to_json()


@pytest.mark.usefixtures("mark")
def test_a_rule_that_hangs_delays_nobody(run: Path):
    engine = Engine(
        run,
        (Hostile(what="loop"), Foreign(), ExplodingTensor()),
        record=False,
        limits=Limits(seconds=10.0, restarts=0),
    )
    follow = engine.follow(0.01)
    assert [finding.rule for finding in engine._poll(wait=False)] == [
        "ExplodingTensor"
    ] * 2
    assert {f.rule for f in next(follow)} == {"Foreign"}
    assert list(follow) == []
    states = [status.status for status in engine.finish().statuses]
    assert states == [Status.ERROR, Status.ISSUES_FOUND, Status.ISSUES_FOUND]


@pytest.mark.usefixtures("mark")
def test_a_rule_that_cannot_be_made_again_is_an_error(run: Path):
    (status,) = judge(run, Refusing()).statuses
    assert status.status is Status.ERROR
    assert status.message == "ConfigurationError: not here"


def test_a_rule_that_is_in_no_module_runs_here_and_it_is_said(run: Path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Inner(Foreign):
        pass

    report = judge(run, Inner())
    assert len(report.findings) == 1
    (note,) = report.notes
    assert note.startswith("rule Inner runs in this process: its class ")
    report = judge(run, Foreign(limit=np.float32(0)))
    assert report.notes == (
        "rule Foreign runs in this process: its parameter limit is a float32",
    )


def test_rules_travel_with_their_parameters(tmp_path: Path):
    rule = Foreign(names=("weights", "losses"), mode=ModeKeys.EVAL, limit=2.5)
    assert transport.build(transport.describe(rule)) == rule
    assert transport.is_foreign(rule)
    assert not transport.is_foreign(ExplodingTensor())
    # A module that no name imports is found by its file.
    file = tmp_path / "my_rules.py"
    file.write_text(Path(str(Foreign.__init__.__globals__["__file__"])).read_text())
    found = transport.build(transport.describe(rule) | {"file": str(file)})
    assert found.parameters() == rule.parameters()
    assert type(found).__module__ == transport.ALIAS


def test_an_engine_that_is_forgotten_leaves_no_process(run: Path, mark: str):
    engine = Engine(run, Foreign(), record=False)
    engine.poll()
    assert marked(mark)
    del engine


@pytest.mark.usefixtures("mark")
def test_processes_end_with_a_parent_that_dies(run: Path):
    child = os.fork()
    if not child:
        engine = Engine(run, Foreign(), record=False)
        engine._poll(wait=False)
        os._exit(0)
    os.waitpid(child, 0)
