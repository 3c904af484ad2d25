"""ModelCopies, on copies that follow a model in part, by name, or in training mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import ModelCopies, RunningStatistics
from tdbg.run.findings import Finding

N_STEPS = 220
Update = Callable[[nn.Module, nn.Module], None]


class Encoder(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.head(self.body(x)), dim=1)


class Contrast(nn.Module):
    """Compares answers of a model with those of a copy that follows it."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update
        self.encoder_q = Encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.encoder_q(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            # Before the first loss, too: it is then equal up to rounding.
            self.update(self.encoder_k, self.encoder_q)
            keys = self.encoder_k(x + 0.1 * torch.randn_like(x))
        scores = queries @ keys.T / 0.2
        return functional.cross_entropy(scores, torch.arange(len(x)))


def follow(ours: nn.Module, theirs: nn.Module, decay: float = 0.99) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        one.data = decay * one.data + (1 - decay) * other.data


def exchanged(ours: nn.Module, theirs: nn.Module) -> None:
    follow(ours, theirs, 0.01)


def of_body(ours: nn.Module, theirs: nn.Module) -> None:
    follow(ours.get_submodule("body"), theirs.get_submodule("body"))


def never(ours: nn.Module, theirs: nn.Module) -> None:
    """Update nothing."""


def judged(run_dir: Path, model: nn.Module, n_steps: int = N_STEPS) -> list[Finding]:
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
    rules = [ModelCopies()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model(torch.randn(32, 8)).backward()
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (of_body, "follows the model in part: of 4 of its parameters that were looked"),
        (exchanged, "each update left 1% of the copy's own weights"),
        (never, "The target network never moves"),
    ],
)
def test_a_copy_that_does_not_follow_as_it_should(
    run_dir: Path, update: Update, said: str
) -> None:
    torch.manual_seed(0)
    (finding,) = judged(run_dir, Contrast(update))
    assert said in finding.message
    assert finding.advice


class Reference(Contrast):
    """Compares with a copy that stays as it is, and has no name of one that follows."""

    def __init__(self) -> None:
        super().__init__(never)
        self.reference = self.encoder_k
        del self.encoder_k

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.reference(x) + 0.1
        return functional.mse_loss(self.encoder_q(x), wanted)


class Frozen(Contrast):
    """A copy of a model whose head is frozen, and does not move in the copy, either."""

    def __init__(self) -> None:
        super().__init__(of_body)
        self.encoder_q.head.requires_grad_(False)


@pytest.mark.parametrize(
    "make", [lambda: Contrast(follow), Reference, Frozen], ids=["all", "kept", "frozen"]
)
def test_copies_as_they_are_meant(run_dir: Path, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert judged(run_dir, make()) == []


# ---- averages in objects -------------------------------------------------------------


class Kept:
    """Holds an average of a model, as libraries do."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model)

    def update(self, model: nn.Module, decay: float = 0.95) -> None:
        state = self.module.state_dict()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    value = decay * state[name] + (1 - decay) * value  # noqa: PLW2901
                state[name].copy_(value)


def averaged(run_dir: Path, evaluate: Callable[[Kept, nn.Module], None]) -> set[str]:
    """Train with an average, and evaluate it now and then."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)
    model = nn.Sequential(*layers)
    ema = Kept(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    rules = [ModelCopies(), RunningStatistics()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for step in range(N_STEPS):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), x[:, :4].argmax(1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ema.update(model)
            if step % 20 == 19:
                with torch.no_grad():
                    evaluate(ema, model)
        assert hook.counters()["internal_errors"] == 0
    found = tdbg.rules.check(run_dir, rules=rules).findings
    return {each.message for each in found}


def right(ema: Kept, _: nn.Module) -> None:
    ema.module.eval()
    ema.module(torch.randn(8, 8))


def set_before(ema: Kept, model: nn.Module) -> None:
    ema.module.load_state_dict(model.state_dict())
    right(ema, model)


def in_training(ema: Kept, _: nn.Module) -> None:
    ema.module(torch.randn(8, 8))


def fed_before(ema: Kept, model: nn.Module) -> None:
    ema.module.train()
    ema.module(torch.randn(8, 8))
    right(ema, model)


def test_an_average_that_is_set_to_the_model_before_it_is_evaluated(
    run_dir: Path,
) -> None:
    (message,) = averaged(run_dir, set_before)
    assert "The average of weights is no average" in message


def test_an_average_that_is_evaluated_in_training_mode(run_dir: Path) -> None:
    (message,) = averaged(run_dir, in_training)
    assert "evaluated in training mode: Sequential is called without" in message


@pytest.mark.parametrize("evaluate", [right, fed_before])
def test_averages_that_are_evaluated_as_they_should(
    run_dir: Path, evaluate: Callable[[Kept, nn.Module], None]
) -> None:
    assert averaged(run_dir, evaluate) == set()
