"""ModelCopies, on real trainings: best weights, averages, targets; and healthy ones."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

Step = Callable[[int], object]


def batch(n: int = 16) -> tuple[Tensor, Tensor]:
    x = 2 * torch.randn(n, 8) + 1
    return x, (x[:, 0] > 1).long()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 2))


def judged(
    run_dir: Path,
    model: nn.Module,
    after: Step,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
    n_steps: int = 130,
) -> list[Finding]:
    """Train; *after* says what the program does after each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    criterion = nn.CrossEntropyLoss()
    before = nn.Module.load_state_dict
    with td.watch(
        model, criterion, out=run_dir, budget="off", min_free_bytes=0
    ) as hook:
        for step in range(n_steps):
            x, y = batch()
            loss = loss_of(x, y) if loss_of else criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(step)
    assert hook.counters()["internal_errors"] == 0
    assert nn.Module.load_state_dict is before
    rule = tdbg.rules.ModelCopies()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        model.eval()
        model(batch()[0])


# ---- best weights -------------------------------------------------------------------


class Best:
    """Keeps the weights of step 50, and restores them at the end."""

    def __init__(
        self, model: nn.Module, keep: Callable[[nn.Module], Any], load: Any = None
    ) -> None:
        self.model, self.keep = model, keep
        self.load = load or (lambda model, kept: model.load_state_dict(kept))
        self.kept: Any = None

    def __call__(self, step: int) -> None:
        if step == 50:
            self.kept = self.keep(self.model)
        self.model.state_dict()  # As programs do that save a checkpoint at each step.
        if step == 129:
            self.load(self.model, self.kept)


def saved(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer)


def test_best_weights_that_are_kept_by_reference(run_dir: Path) -> None:
    model = network()
    (finding,) = judged(run_dir, model, Best(model, lambda m: m.state_dict()))
    assert (finding.tensor, finding.severity) == ("Sequential", Severity.WARNING)
    assert "restored nothing" in finding.message
    assert "copy.deepcopy(model.state_dict())" in finding.advice


def test_weights_that_are_swapped_for_an_average_and_back(run_dir: Path) -> None:
    """The weights before are lost as soon as others are loaded."""
    model = network()
    others = copy.deepcopy(model.state_dict())

    def after(step: int) -> None:
        if step == 60:
            before = model.state_dict()
            model.load_state_dict(others)
            evaluate(model)
            model.train()
            model.load_state_dict(before)

    (finding,) = judged(run_dir, model, after)
    assert finding.first_step in {60, 61}


@pytest.mark.parametrize(
    "keep",
    [
        lambda model: copy.deepcopy(model.state_dict()),
        lambda model: {k: v.clone() for k, v in model.state_dict().items()},
        lambda model: copy.deepcopy(model).state_dict(),
        saved,
    ],
    ids=["deepcopy", "clone", "copy_of_the_model", "file"],
)
def test_copies_of_the_best_weights(
    run_dir: Path, keep: Callable[[nn.Module], Any]
) -> None:
    model = network()
    assert judged(run_dir, model, Best(model, keep)) == []


def test_a_state_that_is_loaded_at_once_or_completed_before(run_dir: Path) -> None:
    model = network()
    checkpoint = {"0.weight": torch.ones(16, 8)}

    def after(step: int) -> None:
        if step % 10 == 9:
            model.load_state_dict(model.state_dict())
            state = model.state_dict()
            state.update(checkpoint)
            model.load_state_dict(state)

    assert judged(run_dir, model, after) == []


# ---- averages -----------------------------------------------------------------------


def follow(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        pairs = zip(average.parameters(), model.parameters(), strict=True)
        for ours, theirs in pairs:
            ours.lerp_(theirs, 0.05)


def test_an_average_whose_statistics_are_left_behind(run_dir: Path) -> None:
    model = network()
    average = copy.deepcopy(model)

    def after(step: int) -> None:
        follow(average, model)
        if step == 100:
            evaluate(average)

    (finding,) = judged(run_dir, model, after)
    assert finding.first_step == 100
    assert "stale running statistics" in finding.message
    assert "update_bn" in finding.advice


def test_an_average_of_models_that_was_never_fed(run_dir: Path) -> None:
    model = network()
    averaged = AveragedModel(model)

    def after(step: int) -> None:
        if step > 60 and step % 10 == 0:
            averaged.update_parameters(model)
        if step == 129:
            evaluate(averaged)

    (finding,) = judged(run_dir, model, after)
    assert "statistics of an average of 6 models are stale" in finding.message
    assert "nobody has updated its BatchNorm layers" in finding.message
    assert "update_bn" in finding.advice


def test_an_average_that_only_binds_a_name(run_dir: Path) -> None:
    model = network()
    ema = copy.deepcopy(model)

    def after(step: int) -> None:
        for ours, theirs in zip(ema.parameters(), model.parameters(), strict=True):
            _ = 0.9 * ours + 0.1 * theirs
        if step % 20 == 19:
            evaluate(ema)

    (finding,) = judged(run_dir, model, after)
    assert "never moves" in finding.message
    assert "in place" in finding.advice


def moving_average(ours: Tensor, theirs: Tensor, _: Tensor | int) -> Tensor:
    return 0.9 * ours + 0.1 * theirs


class Healthy:
    """Copies as they should be, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.average = copy.deepcopy(model)
        self.averaged = AveragedModel(model)
        self.with_buffers = AveragedModel(model, use_buffers=True)
        self.moving = AveragedModel(model, avg_fn=moving_average)

    def copies_buffers(self, step: int) -> None:
        follow(self.average, self.model)
        pairs = zip(self.average.buffers(), self.model.buffers(), strict=True)
        for ours, theirs in pairs:
            ours.copy_(theirs)
        self.evaluates(self.average, step)

    def updates_statistics(self, step: int) -> None:
        self.averaged.update_parameters(self.model)
        if step == 129:
            update_bn([batch()[0]], self.averaged)
            evaluate(self.averaged)

    def averages_buffers(self, step: int) -> None:
        self.with_buffers.update_parameters(self.model)
        self.evaluates(self.with_buffers, step)

    def is_a_moving_average(self, step: int) -> None:
        self.moving.update_parameters(self.model)
        self.evaluates(self.moving, step)

    def is_one_model(self, step: int) -> None:
        if step == 100:
            self.averaged.update_parameters(self.model)
            evaluate(self.averaged)

    def begins_late(self, step: int) -> None:
        if step > 120:
            self.with_buffers.update_parameters(self.model)
            self.evaluates(self.with_buffers, step)

    def is_a_mean_teacher(self, step: int) -> None:
        """The teacher is in training mode, with statistics of its own."""
        follow(self.average, self.model)
        self.average.train()
        self.average(batch()[0])
        self.evaluates(self.average, step)

    def evaluates(self, model: nn.Module, step: int) -> None:
        if step % 20 == 19:
            evaluate(model)


@pytest.mark.parametrize(
    "name",
    [
        "copies_buffers",
        "updates_statistics",
        "averages_buffers",
        "is_a_moving_average",
        "is_one_model",
        "begins_late",
        "is_a_mean_teacher",
    ],
)
def test_healthy_averages(run_dir: Path, name: str) -> None:
    model = network()
    copies = Healthy(model)
    assert judged(run_dir, model, getattr(copies, name)) == []


class Shadow:
    """A copy to evaluate with, so that the model stays in training mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._copy = model, copy.deepcopy(model)

    def after(self, step: int) -> None:
        if step % 20 == 19:
            self._copy.load_state_dict(self._model.state_dict())
            evaluate(self._copy)


def test_a_copy_that_gets_the_weights_before_each_evaluation(run_dir: Path) -> None:
    model = network()
    assert judged(run_dir, model, Shadow(model).after, n_steps=230) == []


def test_a_model_of_the_beginning_that_is_compared(run_dir: Path) -> None:
    model = network()
    begin = copy.deepcopy(model)

    def after(step: int) -> None:
        if step % 20 == 19:
            evaluate(begin)

    assert judged(run_dir, model, after) == []


# ---- targets ------------------------------------------------------------------------


def values() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


class Temporal:
    """Differences in time: the target network is asked about the next states."""

    def __init__(self, *, same_inputs: bool = False) -> None:
        self.online = values()
        self.target = copy.deepcopy(self.online)
        self.same_inputs = same_inputs

    def __call__(self, x: Tensor, _: Tensor) -> Tensor:
        after = x if self.same_inputs else torch.randn_like(x)
        with torch.no_grad():
            wanted = 0.1 * x[:, 0] + 0.9 * self.target(after).max(1).values
        return functional.mse_loss(self.online(x)[:, 0], wanted)


def test_a_target_network_that_is_never_updated(run_dir: Path) -> None:
    agent = Temporal()
    (finding,) = judged(run_dir, agent.online, lambda _: None, agent, 250)
    assert "target network never moves" in finding.message
    assert "target.load_state_dict" in finding.advice


@pytest.mark.parametrize(("interval", "n_findings"), [(10_000, 0), (100, 1)])
def test_a_training_may_be_shorter_than_the_interval_of_its_target(
    run_dir: Path, interval: int, n_findings: int
) -> None:
    agent = Temporal()
    agent.target_update_interval = interval
    found = judged(run_dir, agent.online, lambda _: None, agent, 250)
    assert len(found) == n_findings


@pytest.mark.parametrize("is_updated", [False, True])
def test_a_target_network_that_dies_before_the_hook_is_closed(
    run_dir: Path, is_updated: bool
) -> None:
    """Programs train in a function, and the hook is closed as the process ends."""

    def main() -> td.Hook:
        agent = Temporal()
        optimizer = torch.optim.SGD(agent.online.parameters(), 0.02)
        hook = td.watch(agent.online, out=run_dir, budget="off", min_free_bytes=0)
        for step in range(250):
            optimizer.zero_grad()
            agent(*batch()).backward()
            optimizer.step()
            if is_updated and step == 100:
                agent.target.load_state_dict(agent.online.state_dict())
        return hook

    main().close()
    rule = tdbg.rules.ModelCopies()
    found = list(tdbg.rules.check(run_dir, rule, record=False).findings)
    assert [" never moves" in each.message for each in found] == [True] * (
        not is_updated
    )


@pytest.mark.parametrize("kind", ["hard", "soft", "rare", "reference", "short"])
def test_healthy_targets(run_dir: Path, kind: str) -> None:
    agent = Temporal(same_inputs=kind == "reference")

    def after(step: int) -> None:
        if kind == "hard" and step % 50 == 49:
            agent.target.load_state_dict(agent.online.state_dict())
        if kind == "rare" and step % 10_000 == 0:
            agent.target.load_state_dict(agent.online.state_dict())
        if kind == "soft":
            follow(agent.target, agent.online)

    n_steps = 100 if kind == "short" else 250
    assert judged(run_dir, agent.online, after, agent, n_steps) == []


def test_a_copy_that_shows_now_and_then_what_the_model_does(run_dir: Path) -> None:
    """Samples of a generator, drawn with its present weights."""
    model = values()
    shown = copy.deepcopy(model)

    def after(step: int) -> None:
        if step % 10 == 9:
            shown.load_state_dict(model.state_dict())
            with torch.no_grad():
                shown.eval()(torch.randn(8, 8))

    def loss(x: Tensor, _: Tensor) -> Tensor:
        return functional.mse_loss(model(x)[:, 0], x[:, 0])

    assert judged(run_dir, model, after, loss, 300) == []


def test_a_copy_that_is_watched_is_freed(run_dir: Path) -> None:
    model = network()
    copies = [copy.deepcopy(model)]
    handles: list[int] = []

    def after(step: int) -> None:
        if step == 5:
            handles.append(len(copies[0]._forward_pre_hooks))
        if step == 10:
            copies.clear()

    assert judged(run_dir, model, after, n_steps=30) == []
    assert handles == [1]
    assert not model._forward_pre_hooks


def test_a_hook_that_nobody_closes_leaves_the_methods_as_they_were(
    run_dir: Path,
) -> None:
    before = nn.Module.load_state_dict
    hook = td.Hook(run_dir, min_free_bytes=0)
    hook.register_module(network())
    assert nn.Module.load_state_dict is not before or hasattr(before, "_tdbg_original")
    del hook
    gc.collect()
    assert nn.Module.load_state_dict is before
