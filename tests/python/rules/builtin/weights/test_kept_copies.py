"""ModelCopies, on copies that are the model itself, or somebody else's."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(16, 8))
    model.train()


class Training:
    """A training whose program does something after each step.

    Args:
        run_dir: Where it is captured.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.model = network()
        self.kept: dict[str, Any] = {}

    def judged(
        self,
        after: Callable[[int], object],
        loss_of: Callable[[Tensor], Tensor] | None = None,
        n_steps: int = 100,
    ) -> list[Finding]:
        optimizer = torch.optim.Adam(self.model.parameters(), 3e-3)
        options: dict[str, Any] = {"out": self.run_dir, "min_free_bytes": 0}
        with td.watch(self.model, budget="off", **options) as hook:
            for step in range(n_steps):
                x = torch.randn(16, 8)
                labels = (x[:, 0] > 0).long()
                loss: Any = (
                    loss_of(x)
                    if loss_of
                    else functional.cross_entropy(self.model(x), labels)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                after(step)
        assert hook.counters()["internal_errors"] == 0
        rule = tdbg.rules.ModelCopies()
        return list(tdbg.rules.check(self.run_dir, rule, record=False).findings)


# ---- the best model -----------------------------------------------------------------


class Keeper(Training):
    """Keeps the model of step 39, and evaluates every 20 steps."""

    best_model: Any = None
    best_state: Any = None

    def judge(
        self, name: str, keep: Callable[[nn.Module], Any], *, saves: bool = False
    ) -> list[Finding]:
        def after(step: int) -> None:
            if step % 20 == 19:
                evaluate(self.model)
            if step == 39:
                setattr(self, name, keep(self.model))
                if saves:
                    torch.save(getattr(self, name), io.BytesIO())

        return self.judged(after)


@pytest.mark.parametrize("keep", [lambda model: model, copy.copy])
def test_a_best_model_that_is_the_model(
    run_dir: Path, keep: Callable[[nn.Module], Any]
) -> None:
    (finding,) = Keeper(run_dir).judge("best_model", keep)
    assert finding.severity is Severity.WARNING
    assert "best_model is no copy: it is the same object as model" in finding.message
    assert "copy.deepcopy(model)" in finding.advice


@pytest.mark.parametrize(
    "keep",
    [
        nn.Module.state_dict,
        lambda model: model.state_dict().copy(),
        lambda model: {k: v.detach().cpu() for k, v in model.state_dict().items()},
        lambda model: {"epoch": 3, "model": model.state_dict()},
    ],
    ids=["state", "shallow", "cpu", "checkpoint"],
)
def test_a_best_state_of_references(
    run_dir: Path, keep: Callable[[nn.Module], Any]
) -> None:
    (finding,) = Keeper(run_dir).judge("best_state", keep)
    assert finding.severity is Severity.WARNING
    assert "best_state keeps no weights" in finding.message


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("best_model", copy.deepcopy),
        ("best_state", lambda model: copy.deepcopy(model.state_dict())),
        ("best_state", lambda model: {k: v.clone() for k, v in vars(model).items()}),
        ("latest_state", nn.Module.state_dict),
        ("best_state", lambda model: list(model.state_dict())),
    ],
    ids=["copy", "copied_state", "nothing", "latest", "names"],
)
def test_what_is_kept_as_it_should_be(
    run_dir: Path, name: str, keep: Callable[[nn.Module], Any]
) -> None:
    def kept(model: nn.Module) -> Any:
        try:
            return keep(model)
        except AttributeError:
            return None

    assert Keeper(run_dir).judge(name, kept) == []


@pytest.mark.parametrize("name", ["best_model", "best_state"])
def test_what_is_saved_at_once(run_dir: Path, name: str) -> None:
    def keep(model: nn.Module) -> Any:
        return model if name == "best_model" else model.state_dict()

    assert Keeper(run_dir).judge(name, keep, saves=True) == []


def test_saving_can_be_sent_to_another_process(run_dir: Path) -> None:
    """As programs do that write checkpoints in the background."""
    before = torch.save

    def after(_: int) -> None:
        pickle.dumps(torch.save)
        assert torch.serialization.save is torch.save is not before

    assert Training(run_dir).judged(after, n_steps=2) == []
    assert torch.save is before is torch.serialization.save


def test_a_model_that_is_better_each_time(run_dir: Path) -> None:
    """The name is bound anew at each evaluation, and the last one is the best."""
    training = Keeper(run_dir)

    def after(step: int) -> None:
        if step % 20 == 19:
            evaluate(training.model)
            training.best_state = training.model.state_dict()

    assert training.judged(after) == []


# ---- averages -----------------------------------------------------------------------


class Average:
    """An average of weights, as programs write it."""

    def __init__(self, model: nn.Module, *, in_place: bool) -> None:
        self.model, self.in_place = model, in_place
        self.shadow = {k: p.data.clone() for k, p in model.named_parameters()}
        self.backup: dict[str, Tensor] = {}

    def update(self) -> None:
        for name, each in self.model.named_parameters():
            if self.in_place:
                self.shadow[name].lerp_(each.data, 0.05)
            else:
                self.shadow[name] = 0.95 * self.shadow[name] + 0.05 * each.data

    def apply_shadow(self) -> None:
        for name, each in self.model.named_parameters():
            self.backup[name] = each.data.clone() if self.in_place else each.data
            if self.in_place:
                each.data.copy_(self.shadow[name])
            else:
                each.data = self.shadow[name]

    def restore(self) -> None:
        for name, each in self.model.named_parameters():
            each.data = self.backup[name]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("restores", [True, False])
def test_an_average_that_is_evaluated_in_the_model(
    run_dir: Path, *, in_place: bool, restores: bool
) -> None:
    training = Training(run_dir)
    ema = Average(training.model, in_place=in_place)

    def after(step: int) -> None:
        ema.update()
        if step % 20 == 19:
            evaluate(training.model)
            ema.apply_shadow()
            evaluate(training.model)
            if restores:
                ema.restore()

    found = training.judged(after, n_steps=130)
    # The first evaluation of a step is the one that is looked at.
    assert found == []


@pytest.mark.parametrize("in_place", [True, False])
def test_an_average_that_stays_in_the_model(run_dir: Path, *, in_place: bool) -> None:
    training = Training(run_dir)
    ema = Average(training.model, in_place=in_place)

    def after(step: int) -> None:
        ema.update()
        if step % 20 == 19:
            ema.apply_shadow()
            evaluate(training.model)

    (finding,) = training.judged(after, n_steps=130)
    assert finding.severity is Severity.WARNING
    assert "your program copies ema into Sequential" in finding.message
    assert "restore them afterwards" in finding.advice


@pytest.mark.parametrize("in_place", [True, False])
def test_an_average_that_leaves_the_model(run_dir: Path, *, in_place: bool) -> None:
    training = Training(run_dir)
    ema = Average(training.model, in_place=in_place)

    def after(step: int) -> None:
        ema.update()
        if step % 20 == 19:
            ema.apply_shadow()
            evaluate(training.model)
            ema.restore()
        elif step % 20 == 9:
            evaluate(training.model)

    assert training.judged(after, n_steps=130) == []


def test_an_average_that_copies_the_model_at_first(run_dir: Path) -> None:
    """As in a warm-up, every ten steps."""
    training = Training(run_dir)
    ema = copy.deepcopy(training.model)

    def after(step: int) -> None:
        if step % 10 == 9:
            ema.load_state_dict(training.model.state_dict())
            evaluate(training.model)

    assert training.judged(after) == []


def test_weights_that_look_ahead(run_dir: Path) -> None:
    """The model goes on from slow weights on purpose; these are no average by name."""
    training = Training(run_dir)
    slow = copy.deepcopy(training.model)

    def after(step: int) -> None:
        if step % 5 == 4:
            with torch.no_grad():
                pairs = zip(slow.parameters(), training.model.parameters(), strict=True)
                for ours, theirs in pairs:
                    ours.lerp_(theirs, 0.5)
                    theirs.copy_(ours)
        if step % 20 == 19:
            evaluate(training.model)

    assert training.judged(after) == []


def moving(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    return lambda ours, theirs, _: decay * ours + (1 - decay) * theirs


@pytest.mark.parametrize(
    ("decay", "told"),
    [
        (1.0, "although your program writes to them"),
        (0.0, "The average of weights is no average"),
        (0.001, "The average of weights is no average"),
        (0.9, ""),
        (0.99, ""),
        (0.9999, ""),
    ],
)
def test_averages_by_their_decay(run_dir: Path, decay: float, told: str) -> None:
    training = Training(run_dir)
    ema = AveragedModel(training.model, avg_fn=moving(decay))
    ema.n_averaged.fill_(1)

    def after(step: int) -> None:
        ema.update_parameters(training.model)
        if step % 20 == 19:
            evaluate(ema)

    found = training.judged(after, n_steps=220)
    assert [told in each.message for each in found] == [True] * bool(told)


@pytest.mark.parametrize("kind", ["other", "resumed", "first_copied"])
def test_averages_that_began_as_another_model(run_dir: Path, kind: str) -> None:
    training = Training(run_dir)
    ema = network(5)
    if kind == "resumed":
        ema.load_state_dict(training.model.state_dict())
        with torch.no_grad():
            for each in ema.parameters():
                each.add_(torch.randn_like(each), alpha=0.05)

    def after(step: int) -> None:
        share = 1.0 if kind == "first_copied" and step == 0 else 0.001
        with torch.no_grad():
            pairs = zip(ema.parameters(), training.model.parameters(), strict=True)
            for ours, theirs in pairs:
                ours.lerp_(theirs, share)
        if step % 20 == 19:
            evaluate(ema)

    found = training.judged(after)
    assert len(found) == (kind == "other")
    assert all("is one of another model" in each.message for each in found)


# ---- targets ------------------------------------------------------------------------


class Agent(Training):
    """Learns values by differences in time."""

    def __init__(self, run_dir: Path, make: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__(run_dir)
        self.target_net = make(self.model)

    def loss_of(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            later = self.target_net(torch.randn_like(x)).max(1).values
        return functional.mse_loss(self.model(x)[:, 0], 0.1 * x[:, 0] + 0.9 * later)

    def judge(self, every: int) -> list[Finding]:
        def after(step: int) -> None:
            if step % every == every - 1 and self.target_net is not self.model:
                self.target_net.load_state_dict(self.model.state_dict())

        return self.judged(after, self.loss_of, 220)


@pytest.mark.parametrize("every", [1, 2, 20])
def test_targets_by_how_often_they_are_copied(run_dir: Path, every: int) -> None:
    found = Agent(run_dir, copy.deepcopy).judge(every)
    assert len(found) == (every == 1)
    assert all("The target network is no target" in each.message for each in found)


def sharing(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model).requires_grad_(False)
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        ours.data = theirs.data
    return other


@pytest.mark.parametrize("make", [lambda model: model, copy.copy, sharing])
def test_targets_that_are_the_model(
    run_dir: Path, make: Callable[[nn.Module], nn.Module]
) -> None:
    (finding,) = Agent(run_dir, make).judge(20)
    assert finding.severity is Severity.WARNING
    assert "target_net is no network of its own" in finding.message
    assert "copy.deepcopy(model)" in finding.advice


# ---- targets by how they are used ----------------------------------------------------


class Twins(Training):
    """Learns what a network says of other inputs, which should follow it slowly.

    Args:
        run_dir: Where it is captured.
        names: What the program calls both.
        make: Makes the second one of the first one.
    """

    def __init__(
        self,
        run_dir: Path,
        names: tuple[str, str],
        make: Callable[[nn.Module], nn.Module],
    ) -> None:
        super().__init__(run_dir)
        self.nets = {names[0]: self.model, names[1]: make(self.model)}
        self.second_name = names[1]

    @property
    def second(self) -> nn.Module:
        """The network that should follow."""
        return self.nets[self.second_name]

    def loss_of(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = functional.normalize(self.second(x + 0.1), dim=1)
        told = functional.normalize(self.model(x), dim=1)
        return 2 - 2 * (told * wanted).sum(1).mean()


def averaged(one: nn.Module, other: nn.Module, decay: float = 0.99) -> None:
    with torch.no_grad():
        for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
            ours.mul_(decay).add_(theirs, alpha=1 - decay)


def replaced(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        ours.data = 0.99 * ours.data + 0.01 * theirs.data


def loaded(one: nn.Module, other: nn.Module) -> None:
    one.load_state_dict(other.state_dict())


def left(one: nn.Module, other: nn.Module) -> None:
    """Update nothing."""


def follows(training: Twins, update: Callable[..., None], every: int) -> list[Finding]:
    def after(step: int) -> None:
        if step % every == every - 1:
            update(training.second, training.model)

    return training.judged(after, training.loss_of, 220)


@pytest.mark.parametrize(
    ("second", "update", "severity"),
    [
        ("target", averaged, Severity.WARNING),
        ("slow", replaced, Severity.WARNING),
        ("lagged", loaded, Severity.WARNING),
        ("target", left, Severity.INFO),
    ],
)
def test_networks_that_the_program_updates_with_themselves(
    run_dir: Path, second: str, update: Callable[..., None], severity: Severity
) -> None:
    training = Twins(run_dir, ("online", second), lambda model: model)
    found = follows(training, update, 1 if update is averaged else 5)
    assert {each.severity for each in found} == {severity}
    assert f"{second} is no network of its own: it shares all" in found[0].message
    assert "copy.deepcopy(online)" in found[0].advice
    assert ("SimSiam" in found[0].advice) == (severity is Severity.INFO)


@pytest.mark.parametrize(
    ("second", "make", "update"),
    [
        ("branch", lambda model: model, left),
        ("target", copy.deepcopy, averaged),
        ("target", copy.deepcopy, loaded),
    ],
)
def test_branches_that_are_meant_to_be_what_they_are(
    run_dir: Path,
    second: str,
    make: Callable[[nn.Module], nn.Module],
    update: Callable[..., None],
) -> None:
    training = Twins(run_dir, ("online", second), make)
    assert not follows(training, update, 1 if update is averaged else 5)


@pytest.mark.parametrize(
    ("decay", "is_told"), [(0.01, True), (0.5, False), (0.2, False), (0.99, False)]
)
def test_averages_by_the_share_that_stays(
    run_dir: Path, decay: float, is_told: bool
) -> None:
    training = Twins(run_dir, ("online", "mirror"), copy.deepcopy)
    found = follows(training, functools.partial(averaged, decay=decay), 1)
    assert len(found) == is_told
    assert all(
        "each update left 1% of the copy's own" in each.message for each in found
    )


def test_an_average_that_warms_up(run_dir: Path) -> None:
    training = Twins(run_dir, ("online", "mirror"), copy.deepcopy)

    def after(step: int) -> None:
        decay = min(0.99, (1 + step) / (10 + step))
        averaged(training.second, training.model, decay)

    assert not training.judged(after, training.loss_of, 220)
