"""The default budget: simulated trainings, and real ones that have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg import create_trial
from tdbg.capture import budget, opening
from tdbg.capture.budget import (
    AUTO_SHARE,
    COUNTED_PART,
    FELT,
    FLOOR_NS,
    FREE_NS,
    LEVELS,
    MOST_FELT_NS,
    Throttling,
    floor_of,
)
from tdbg.capture.counted_steps import FELT_COUNTED_NS
from tdbg.capture.overhead import RunDelay
from tdbg.capture.policy import Policy
from tdbg.capture.schedule import ROWS, Throttle
from tdbg.capture.steps import Step
from tdbg.config import (
    Collection,
    CollectionRegistry,
    Needs,
    ReductionConfig,
    Role,
    SaveConfig,
    SaveConfigMode,
    with_beginning,
)
from tdbg.config.options import SessionOptions
from tdbg.modes import ModeKeys
from torch_helpers import digits, mlp, train

MS = 1_000_000
TRAIN = ModeKeys.TRAIN
SECOND = 1000 * MS


class Training:
    """A training by a clock of its own: costs are those of what each step captures.

    Args:
        budget: As of a hook.
        dense_ms: What a step with statistics costs, as the training feels it.
        rest_ms: What a step takes without tdbg.
        idle_ms: What any step costs.
        propose: As of ``Throttling``.
    """

    def __init__(
        self,
        budget: float | str,
        *,
        dense_ms: float,
        rest_ms: float,
        idle_ms: float = 0.01,
        counted_ns: int = 0,
        propose: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        weights = with_beginning(Needs(collections=frozenset({"weights"})))
        registry = CollectionRegistry(["gradients", "losses"])
        self.policy = Policy(registry, SaveConfig(), ReductionConfig(), needs=weights)
        self._weight = self.policy.capture_class("w", Role.WEIGHT)
        self.throttling = Throttling(budget, self.policy, propose)
        self.costs = dense_ms, idle_ms
        self.counted_ns = counted_ns  # Of a step without data, which is only counted.
        self.rest_ns = int(rest_ms * MS)
        self.captured: list[int] = []
        self.events: list[dict[str, Any]] = []
        self.spent_ns = self.n_steps = 0

    def run(self, seconds: float) -> float:
        """Train on; the share that all steps so far have cost."""
        for _ in range(int(seconds * SECOND / self.rest_ns)):
            step = Step(self.n_steps, TRAIN, self.n_steps)
            self.policy.refresh()
            takes = self.policy.step_plan(TRAIN, self.n_steps).of(self._weight)
            if takes:
                self.captured.append(self.n_steps)
            if self.counted_ns and not takes:
                self.throttling.count(1, self.rest_ns, self.counted_ns)
                self.spent_ns += self.counted_ns
                self.n_steps += 1
                continue
            cost = int(self.costs[0 if takes else 1] * MS)
            measured = max(cost / FELT, cost - MOST_FELT_NS)
            if not self.throttling.is_auto:
                measured = cost
            event = self.throttling.end_step(step, measured, self.rest_ns)
            if event is not None:
                self.events.append(event)
            self.spent_ns += cost
            self.n_steps += 1
        return self.spent_ns / (self.n_steps * self.rest_ns)


@pytest.mark.parametrize(
    ("rest_ms", "dense_ms"), [(2.0, 1.0), (5.0, 20.0), (30.0, 2.0), (30.0, 40.0)]
)
def test_by_default_a_minute_costs_what_the_budget_allows_with_its_beginning(
    rest_ms: float, dense_ms: float
) -> None:
    """Sabotaged: no horizon, and what the beginning cost is never paid back."""
    training = Training("auto", dense_ms=dense_ms, rest_ms=rest_ms)
    share = training.run(60.0)
    floor = FLOOR_NS / (60 * SECOND)
    assert share <= 1.02 * AUTO_SHARE + floor
    # Rules have all of what they need.
    assert training.captured[:50] == list(range(50))
    # No more is left out than needed: it is used, or nothing is left out.
    assert share >= 0.4 * AUTO_SHARE or not training.throttling.left_out
    assert training.run(20.0) <= 1.02 * AUTO_SHARE + floor


def test_steps_that_are_only_counted_have_their_share_of_the_budget() -> None:
    """Sabotaged: they count for nothing, and a minute costs 6 %."""
    training = Training("auto", dense_ms=4.0, rest_ms=1.0, counted_ns=FELT_COUNTED_NS)
    assert training.run(60.0) <= 1.02 * AUTO_SHARE


def test_short_steps_that_are_only_counted_leave_a_part_of_the_budget() -> None:
    """Sabotaged: counting takes all, and the most is left out from the first window."""
    short = Training("auto", dense_ms=0.5, rest_ms=0.1, counted_ns=FELT_COUNTED_NS)
    short.run(60.0)
    captured = sum(step >= 50 for step in short.captured) * 0.5
    left = (1 - COUNTED_PART) * AUTO_SHARE * short.n_steps * 0.1
    assert captured >= 0.6 * left


def test_a_beginning_that_costs_all_of_the_first_minute_is_given_up() -> None:
    training = Training("auto", dense_ms=150.0, rest_ms=100.0)
    training.run(30.0)
    assert training.captured[:20] == list(range(20))
    assert training.events[0]["throttle"]["beginning"] is False
    assert training.events[0]["why"] == "over budget"
    # 3 s is what a minute may cost.
    assert 19 <= sum(step < 50 for step in training.captured) <= 24


@pytest.mark.torch
def test_what_comes_once_such_as_a_compilation_is_shown_and_not_charged(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: charged, it takes all of the first minute, beginning included."""
    monkeypatch.setenv("TDBG_BUDGET", "auto")
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with td.watch(model, criterion, out=run_dir) as hook:
        train(model, criterion, optimizer, digits(16), 1)
        hook._session.spend_once(100 * SECOND)
        train(model, criterion, optimizer, digits(16), 60)
        overhead = hook.overhead()
    assert overhead.capture_seconds >= 100
    assert (overhead.changes, overhead.left_out) == (0, "")


@pytest.mark.parametrize("rest_ms", [0.5, 2.0])
@pytest.mark.parametrize("dense_ms", [2.0, 6.0, 60.0])
@pytest.mark.parametrize("n_steps", [300, 600, 3000, 30_000])
def test_by_default_rules_keep_a_floor_of_evidence_whatever_it_costs(
    rest_ms: float, dense_ms: float, n_steps: int
) -> None:
    """Sabotaged: no floor, and 300 steps of 0.5 ms have one row after the beginning."""
    training = Training("auto", dense_ms=dense_ms, rest_ms=rest_ms)
    training.run(n_steps * rest_ms / 1000)
    rows = np.array(training.captured)
    spent = (training.spent_ns - AUTO_SHARE * n_steps * training.rest_ns) / SECOND
    # No gap is longer than a tenth of the steps before it, or half of them once the
    # floor has cost half a second more than the budget.
    apart = 0.1 if dense_ms < 60 else 0.5
    last = 50 if dense_ms < 60 else 40
    gaps = np.diff([*rows, n_steps])
    allowed = np.maximum(10, apart * np.append(rows[1:], n_steps)) + 20
    assert rows[:last].tolist() == list(range(last))
    assert (gaps <= np.minimum(allowed, 2560)).all()
    # The beginning, the half second that is free and the floor's own; a window is over
    # when its cost is seen.
    bound = dense_ms * 50 / 1000 + FREE_NS / SECOND + FLOOR_NS / SECOND
    assert spent <= bound + 20 * dense_ms / 1000


def test_a_short_training_is_captured_as_if_there_were_no_budget() -> None:
    """Sabotaged: nothing is free, and a second window leaves statistics out."""
    training = Training("auto", dense_ms=4.0, rest_ms=0.5)
    training.run(0.150)
    assert training.n_steps == 300
    assert not training.events
    assert training.captured == [*range(50), *range(50, 300, 10)]


def test_the_floor_becomes_rarer_with_the_steps_and_never_with_the_first_hundred() -> (
    None
):
    levels = [floor_of(n) for n in (0, 50, 150, 200, 400, 1600, 25_600, 10**9)]
    throttles = [LEVELS[level] for level in levels]
    assert levels == sorted(levels)
    assert [each.others for each in throttles] == [1, 1, 1, 2, 4, 16, 256, 256]
    assert [each.steps for each in throttles] == [1, 1, 1, 1, 1, 8, 16, 16]
    assert floor_of(300, FLOOR_NS) > floor_of(300)


def test_it_comes_back_as_quickly_as_it_went() -> None:
    """Sabotaged: level by level, two windows each, the training is over before."""
    training = Training("auto", dense_ms=40.0, rest_ms=1.0)
    training.run(60.0)
    assert training.throttling.throttle.others >= 64
    training.costs = 0.05, 0.001  # The machine has become faster, say.
    before = training.n_steps
    training.run(12.0)
    assert training.throttling.left_out == ""
    back = [each for each in training.events if each["why"] == "room again"]
    assert len(back) <= 4
    assert training.n_steps - before == 12_000


def test_by_default_much_is_left_out_at_once_where_much_was_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sabotaged: level by level, a window each, the minute is over before."""
    monkeypatch.setattr(budget, "FLOOR_STEPS", 1)
    training = Training("auto", dense_ms=40.0, rest_ms=4.0)
    while not training.events:
        training.run(0.5)
    first, level = training.events[0], training.events[0]["level"]
    assert first["measured"] > 4 * AUTO_SHARE
    assert level >= 4
    cheap = Training("auto", dense_ms=3.0, rest_ms=4.0)
    while not cheap.events:
        cheap.run(0.5)
    assert cheap.events[0]["level"] < level


def test_what_ranks_are_asked_to_leave_out_holds_once_they_obey() -> None:
    asked: list[Mapping[str, Any]] = []

    def propose(throttle: Mapping[str, Any]) -> bool:
        asked.append(throttle)
        return True

    training = Training("auto", dense_ms=30.0, rest_ms=4.0, propose=propose)
    while not asked:
        training.run(1.0)
    assert training.throttling.is_proposed
    assert training.policy.throttle == Throttle()
    training.run(10.0)  # Nothing else is decided until they have obeyed.
    assert len(asked) == len(training.events) == 1
    training.policy.set_throttle(Throttle(**asked[0]))
    training.throttling.is_proposed = False
    training.run(10.0)
    assert len(asked) == 2
    assert Throttle(**asked[1]) != Throttle(**asked[0])


def test_ranks_that_cannot_be_asked_capture_everything_and_are_seldom_asked() -> None:
    n_asked = 0

    def refuse(_: Mapping[str, Any]) -> bool:
        nonlocal n_asked
        n_asked += 1
        return False

    training = Training("auto", dense_ms=200.0, rest_ms=4.0, propose=refuse)
    training.run(20.0)
    assert 1 < n_asked <= training.n_steps / 100 + 1
    assert training.policy.throttle == Throttle()
    assert not training.events
    assert not training.throttling.left_out


def test_what_is_left_out_is_told_as_intervals() -> None:
    training = Training("auto", dense_ms=8.0, rest_ms=4.0)
    training.run(80.0)
    throttle = training.throttling.throttle
    factor = throttle.others
    statistics, _, losses = training.throttling.left_out.partition(", losses")
    assert statistics == (
        f"statistics every {10 * factor} steps instead of 10"
        if throttle.activations == factor
        else f"statistics every {10 * factor} steps instead of 10, "
        f"statistics of activations every {20 * factor} steps"
    )
    assert losses == (f" every {throttle.steps} steps" if throttle.steps > 1 else "")
    late = [step for step in training.captured if step > 15_000]
    assert set(np.diff(late)) == {10 * factor}
    # What rules need besides statistics becomes rarer with them, and does not go.
    assert training.throttling.throttle.histograms
    assert training.throttling.throttle.values


def test_what_somebody_asks_for_is_never_left_out_and_never_paid_back() -> None:
    training = Training("auto", dense_ms=8.0, rest_ms=4.0)
    training.run(20.0)
    before, level = training.throttling.left_out, training.n_steps
    asked = Collection("attached_0", save_config=SaveConfig(statistics_interval=1))
    asked.roles = frozenset({Role.GRADIENT, Role.WEIGHT})
    need = Needs(collections=frozenset({"weights"}), interval=3)
    policy = training.policy
    policy.registry.add(asked)
    policy.ask(["attached_0"], [need])
    assert policy.refresh()
    gradient = policy.capture_class("gradient/w", Role.GRADIENT)
    weight = policy.capture_class("w", Role.WEIGHT)
    for step in range(level, level + 6):
        plan = policy.step_plan(TRAIN, step)
        assert plan.of(gradient) & ROWS
        assert bool(plan.of(weight) & ROWS)
    n_events = len(training.events)
    training.run(5.0)
    assert len(training.events) == n_events
    policy.registry.remove("attached_0")
    policy.ask([], [])
    assert policy.refresh()
    assert training.throttling.left_out == before


@pytest.fixture
def spent_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default budget, spent before training begins; nothing is cheap enough."""
    monkeypatch.delenv("TDBG_BUDGET")
    monkeypatch.setattr(budget, "AUTO_HORIZON_NS", 0)
    monkeypatch.setattr(budget, "AUTO_SHARE", 1e-4)
    monkeypatch.setattr(budget, "FLOOR_STEPS", 1)


def told_once(caplog: pytest.LogCaptureFixture) -> str:
    """Return the only message that says how to turn the budget off."""
    (told,) = [each.message for each in caplog.records if "turns this" in each.message]
    return told


@pytest.mark.torch
@pytest.mark.usefixtures("spent_budget")
def test_watch_has_a_budget_and_tells_once_what_it_left_out(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with td.watch(model, criterion, out=run_dir) as hook:
        train(model, criterion, optimizer, digits(16), 200)
        left_out = hook.overhead().left_out
    assert "instead of 10" in left_out
    told = told_once(caplog)
    assert told.startswith(left_out)
    assert "budget='off'" in told
    assert create_trial(run_dir).overhead().budget == 1e-4


@pytest.mark.torch
@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, "", AUTO_SHARE),
        ("off", "", None),
        (None, "off", None),
        (None, "0.3", 0.3),
        (0.2, "off", 0.2),
        (False, "", None),  # YAML's off.
    ],
)
def test_the_budget_of_watch_can_be_turned_off(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: Any,
    variable: str,
    expected: float | None,
) -> None:
    monkeypatch.setenv("TDBG_BUDGET", variable)
    with td.watch(mlp(), out=run_dir, budget=given) as hook:
        assert hook.overhead().budget == expected


def test_ranks_that_would_decide_apart_have_no_budget_by_default() -> None:
    """Each measures its own cost, and all must capture the same steps."""
    both: dict[str, Any] = {"world_size": 2, "include_workers": "all"}
    assert opening._budget(SessionOptions(budget="auto", **both)) is None
    assert opening._budget(SessionOptions(budget=0.02, **both)) == 0.02
    assert opening._budget(SessionOptions(budget="auto")) == "auto"


def throttled(budget: float | str) -> Policy:
    """Return a policy of which a budget has left out as much as it can."""
    registry = CollectionRegistry(
        ["weights"],
        [Collection("r", "relu", save_config=SaveConfig(save_interval=50))],
    )
    eval_config = SaveConfigMode(save_interval=1)
    schedules = SaveConfig({ModeKeys.EVAL: eval_config}, statistics_interval=25)
    need = Needs(collections=frozenset({"gradients"}), interval=5)
    policy = Policy(registry, schedules, needs=[need])
    throttling = Throttling(budget, policy)
    policy.set_throttle(throttling._at(len(LEVELS) - 1))
    return policy


def steps_of(policy: Policy, name: str, role: Role, mode: ModeKeys) -> list[int]:
    """Return the first steps at which something is captured of a tensor."""
    capture_class = policy.capture_class(name, role)
    plans = ((step, policy.step_plan(mode, step)) for step in range(1500))
    return [step for step, plan in plans if plan.of(capture_class)]


def test_the_default_budget_keeps_what_the_user_wrote_and_a_number_does_not() -> None:
    """Sabotaged: statistics every 25 steps become statistics every 6,400."""
    kept, cut = throttled("auto"), throttled(0.02)
    for name, role, mode, interval in (
        ("w", Role.WEIGHT, TRAIN, 25),
        ("w", Role.WEIGHT, ModeKeys.EVAL, 1),
        ("relu_output_0", Role.OUTPUT, TRAIN, 50),
    ):
        steps = steps_of(kept, name, role, mode)
        assert set(range(0, 1500, interval)) <= set(steps)
        assert len(steps_of(cut, name, role, mode)) <= 1500 / interval / 64 + 1
    # What tdbg chose by itself is thinned by both.
    for policy in (kept, cut):
        assert steps_of(policy, "g", Role.GRADIENT, TRAIN) == [0, 1280]
        assert "losses every 16 steps" in policy.throttle.text(25)
    assert kept.has_written_schedules
    assert not Policy(CollectionRegistry(["weights"])).has_written_schedules


@pytest.mark.torch
@pytest.mark.usefixtures("spent_budget")
def test_the_cost_of_a_schedule_that_is_kept_is_told(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = SaveConfig(statistics_interval=7)
    with td.watch(model, out=run_dir, save_config=schedule):
        train(model, nn.CrossEntropyLoss(), optimizer, digits(16), 200)
    steps = create_trial(run_dir).tensor("fc1.weight").steps(what="statistics")
    assert set(range(0, 200, 7)) <= set(steps)
    told = told_once(caplog)
    assert "your own schedules are kept" in told
    assert "s beside" in told


@pytest.mark.torch
@pytest.mark.parametrize("part", [0.0, 1.0])
def test_time_without_a_processor_is_charged_to_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """Sabotaged: the budget goes by the clock, and other programs look like tdbg."""
    monkeypatch.delenv("TDBG_BUDGET")
    charged: list[float] = []

    def end_step(_: Throttling, __: Step, capture_ns: float, rest_ns: float) -> None:
        charged.extend((capture_ns, rest_ns))

    def count(_: Throttling, __: int, rest_ns: float, ___: int = 0) -> None:
        charged.append(rest_ns)

    monkeypatch.setattr(RunDelay, "part_running", lambda *_: part)
    monkeypatch.setattr(Throttling, "end_step", end_step)
    monkeypatch.setattr(Throttling, "count", count)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with td.watch(model, out=run_dir):
        train(model, nn.CrossEntropyLoss(), optimizer, digits(16), 80)
    assert len(charged) >= 100
    assert (sum(charged) > 0) is (part > 0)
