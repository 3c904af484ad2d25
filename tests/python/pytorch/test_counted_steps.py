"""Steps that a budget leaves out are only counted; whatever else happens is seen."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg._core import CountedHook, StepCounter
from tdbg.capture import counted_steps
from tdbg.errors import TrainingStopped
from tdbg.modes import EVAL
from tdbg.run.requests import request_stop
from torch_helpers import Recorded

EVERY = 4


class Training:
    """A model by default, of whose steps one in ``EVERY`` is left."""

    def __init__(
        self, run_dir: Path, n_first: int = 60, *, counts: bool = True
    ) -> None:
        torch.manual_seed(1)
        self.run_dir = run_dir
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hook = td.watch(self.model, out=run_dir, budget="off")
        if not counts:
            self.hook._session.counted.may_count = None
        self.run(n_first)  # Behind the beginning.
        policy = self.hook._session.policy
        throttle = policy.throttle._replace(activations=100, others=100, steps=EVERY)
        policy.set_throttle(throttle)

    @property
    def counter(self) -> StepCounter:
        return self.hook._session.counted.counter

    def loss(self) -> torch.Tensor:
        answers = self.model(torch.randn(5, 4))
        return nn.functional.cross_entropy(answers, torch.arange(5) % 3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def run(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.step()

    def count(self) -> None:
        """Train until a step was counted, and more may be."""
        for _ in range(3 * EVERY):
            self.step()
            if self.counter.n == 1:
                return
        raise AssertionError(self.hook.counters())

    def recorded(self) -> Recorded:
        assert self.hook.counters()["internal_errors"] == 0
        assert self.hook.close()
        return Recorded(self.run_dir)


@pytest.fixture
def training(run_dir: Path) -> Iterator[Training]:
    found = Training(run_dir)
    yield found
    found.hook.close()


def test_steps_of_a_training_that_goes_on_in_a_handler_are_counted(
    training: Training,
) -> None:
    """Sabotaged: any exception that is being handled ends the counting."""
    try:
        raise KeyError
    except KeyError:
        training.run(40)
        assert training.counter.n_events > 0


def test_losses_of_the_steps_that_are_left_are_there_under_their_numbers(
    training: Training,
) -> None:
    training.run(40)
    assert training.counter.n_events > 0
    assert training.hook.n_steps == training.hook.overhead().steps == 100
    losses = training.recorded().rows("cross_entropy_output_0")
    assert set(losses) == {*range(60), *range(60, 100, EVERY)}
    overhead = tdbg.create_trial(training.run_dir).overhead()
    assert overhead.steps == 100


def test_a_loss_that_is_left_is_noted_without_seeing_its_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: where every step with a loss is seen, a quarter of them are."""
    session, seen = training.hook._session, []
    monkeypatch.setattr(counted_steps, "_LONGEST_NS", 3600 * 10**9)
    session.obedience.next_poll_ns = sys.maxsize
    end = session.step_writer.step_ended
    monkeypatch.setattr(
        session.step_writer,
        "step_ended",
        lambda step, *rest: (seen.append(step.number), end(step, *rest)),
    )
    training.run(10 * EVERY)
    assert len(seen) < 5
    # What was noted so far can be read when a flush returns.
    training.hook.flush()
    losses = tdbg.create_trial(training.run_dir).tensor("cross_entropy_output_0")
    assert set(losses.steps()) >= set(range(60, 60 + 10 * EVERY, EVERY))


@pytest.mark.parametrize("again", [1, 2])
def test_losses_that_cannot_be_noted_are_seen(training: Training, again: int) -> None:
    """Of float64, or called in a loop: one name has several numbers in a step."""

    def losses() -> torch.Tensor:
        answers = training.model(torch.ones(5, 4))
        answers = answers if again > 1 else answers.double()
        each = [
            nn.functional.cross_entropy(answers, torch.arange(5) % 3)
            for _ in range(again)
        ]
        return torch.stack(each).sum()

    for _ in range(4 * EVERY):
        training.optimizer.zero_grad()
        losses().backward()
        training.optimizer.step()
    found = training.recorded()
    steps = set(range(60, 60 + 4 * EVERY, EVERY))
    names = [name for name in found.names if "loss" in name or "cross_entropy" in name]
    assert any(set(found.rows(name)) >= steps for name in names), names


def test_the_training_is_what_it_was(run_dir: Path) -> None:
    watched = Training(run_dir)
    watched.run(40)
    seen = [each.detach().clone() for each in watched.model.parameters()]
    watched.hook.close()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    watched.model = model
    watched.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched.run(100)
    for mine, other in zip(seen, model.parameters(), strict=True):
        assert torch.equal(mine, other)


def _evaluate(training: Training) -> None:
    training.model.eval()
    with torch.no_grad():
        training.loss()
    training.model.train()


def _fail(training: Training) -> None:
    with pytest.raises(RuntimeError):
        training.model(torch.randn(5, 5))


def _fail_in_a_handler(training: Training) -> None:
    try:
        raise KeyError
    except KeyError:
        training.step()


def _forward_twice(training: Training) -> None:
    training.loss().backward()
    training.step()


def _closure(training: Training) -> None:
    def evaluate() -> Any:
        training.optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        return loss

    training.optimizer.step(evaluate)


def _record(training: Training) -> None:
    training.hook.save_scalar("mine", 1.0)


def _record_within(training: Training) -> None:
    training.loss().backward()
    training.hook.save_scalar("mine", 1.0)
    training.optimizer.step()


def _say(training: Training) -> None:
    training.hook.set_mode(EVAL)
    training.loss()
    training.hook.set_mode(None)


def _add(training: Training) -> None:
    training.model.append(nn.Linear(3, 3))


def _skip(training: Training) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), 1.0):
        training.optimizer.zero_grad()
        scaler.scale(training.loss() * factor).backward()
        scaler.step(training.optimizer)
        scaler.update()


EVENTS: list[Callable[[Training], None]] = [
    _evaluate,
    _fail,
    _fail_in_a_handler,
    _forward_twice,
    _closure,
    _record,
    _record_within,
    _say,
    _add,
    _skip,
]


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_else_happens_is_seen_as_without_counting(
    tmp_path: Path, event: Callable[[Training], None]
) -> None:
    """Sabotaged: events that were counted are not repeated, or steps not numbered."""
    found = []
    for counts in (True, False):
        training = Training(tmp_path / str(counts), counts=counts)
        training.run(7)
        if counts:
            assert training.counter.n > 0
        event(training)
        training.run(10)
        assert bool(training.counter.n_events) is counts
        state = training.hook.state_dict()
        recorded = training.recorded()
        losses = {
            name: {
                step: [row["mean"].tobytes() for row in rows]
                for step, rows in recorded.rows(name).items()
            }
            for name in recorded.names
            if "cross_entropy" in name
        }
        found.append((state, losses, recorded.names))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    for name, rows in found[1][1].items():
        assert found[0][1][name] == rows, name


def test_a_stop_is_heard_while_steps_are_counted(training: Training) -> None:
    training.count()
    request_stop(training.run_dir, reason="enough")
    with pytest.raises(TrainingStopped, match="enough"):
        training.run(10**6)


def test_a_stop_is_heard_after_an_event_could_not_be_repeated(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(_: counted_steps.StepEvent) -> None:
        msg = "no such event"
        raise RuntimeError(msg)

    training.count()
    training.loss()  # The step under way has events.
    with monkeypatch.context() as patched:
        patched.setattr(counted_steps.StepEvent, "repeat", repeat)
        training.hook._session.see()
    assert training.hook.counters()["internal_errors"] == 1
    request_stop(training.run_dir, reason="enough")
    with pytest.raises(TrainingStopped, match="enough"):
        training.run(1000)


def test_a_schedule_of_rates_is_seen_where_no_budget_leaves_steps_out(
    run_dir: Path,
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    never = td.SaveConfig(save_interval=10**6, statistics_interval=10**6)
    hook = td.Hook(
        run_dir,
        include_collections=["scalars", "weights"],
        save_config=never,
    )
    for name in ("losses", "scalars"):
        hook.get_collection(name).save_config = never
    hook.register_module(model)
    for step in range(60):
        if step == 43:
            optimizer.param_groups[0]["lr"] = 0.01
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    counter = hook._session.counted.counter
    assert counter.n_events > 0
    assert hook.close()
    trial = tdbg.create_trial(run_dir)
    (lr,) = [each for each in trial.tensor_names() if each.endswith("lr")]
    assert list(trial.tensor(lr).steps()) == [0, 43]


def test_hooks_of_the_core_are_what_they_stand_for(training: Training) -> None:
    training.count()
    hooks = [
        each
        for owner in (training.model, training.optimizer)
        for name, found in vars(owner).items()
        if name.endswith("_hooks")
        for each in found.values()
        if type(each) is CountedHook
    ]
    assert len(hooks) >= 4
    for each in hooks:
        assert each.__class__ is type(each.stands_for)
        assert isinstance(each, type(each.stands_for))
    other = copy.deepcopy(training.model)
    assert torch.equal(other(torch.ones(1, 4)), training.model(torch.ones(1, 4)))
    assert not any(
        isinstance(each, CountedHook) for each in other._forward_hooks.values()
    )
    assert training.hook.close()
    assert not training.model._forward_pre_hooks
    assert not training.model._forward_hooks


def test_a_training_that_is_dropped_is_not_kept_alive(run_dir: Path) -> None:
    training = Training(run_dir)
    training.count()
    model, hook = weakref.ref(training.model), weakref.ref(training.hook._session)
    del training
    gc.collect()
    assert model() is None
    assert hook() is None


def test_a_model_that_is_gone_keeps_no_steps_from_being_counted(run_dir: Path) -> None:
    """What made the data of an equation: a module that was called and dropped."""
    training = Training(run_dir)
    hook = training.hook
    truth = nn.Linear(4, 4)
    hook.register_module(truth, name="truth")
    truth(torch.ones(2, 4))
    del truth
    gc.collect()
    training.run(5 * EVERY)
    assert hook.counters()["internal_errors"] == 0
    hook.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("in_forward", None, None, print, print, (), None), TypeError, "StepCounter"),
        (
            ("forward_begins", StepCounter(), None, print, print, (), None),
            ValueError,
            "two for forward_begins",
        ),
        (
            ("forward_ends", StepCounter(), None, print, print, (1,), None),
            ValueError,
            "weak",
        ),
        ((0, StepCounter(), None, print, print, (), None), TypeError, "str"),
        (("in_forward",), TypeError, "7 arguments"),
    ],
)
def test_a_bad_hook_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        CountedHook(*arguments)


def test_an_unknown_kind_of_hook_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="kind must be one of") as refused:
        CountedHook("forward_begin", StepCounter(), None, print, print, (), None)
    message = str(refused.value)
    assert message.endswith("not 'forward_begin'")
    for word in ("forward_begins", "forward_ends", "optimizer_begins"):
        assert word in message
    for word in ("optimizer_ends", "in_forward", "known_optimizer"):
        assert word in message


def test_a_step_without_events_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="event"):
        StepCounter().begin((), 1, 0)
