"""RunningStatistics, on real trainings: what evaluation sees, and what moves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity
from tdbg.run.observations import Fault
from tdbg.trial import create_trial

pytestmark = pytest.mark.torch

Step = Callable[[int], object]


def batch(n: int = 32) -> tuple[Tensor, Tensor]:
    x = 2 * torch.randn(n, 8) + 1
    return x, (x[:, 0] > 1).long()


def network(**settings: object) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, **settings)  # type: ignore[arg-type]
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 2))


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(batch()[0])
    model.train()


def feed(model: nn.Module) -> None:
    """Train elsewhere before: running statistics of other data."""
    for _ in range(30):
        model(3 * batch()[0] + 2)


def judged(
    run_dir: Path,
    model: nn.Module,
    after: Step | None = None,
    *,
    trained: Iterable[nn.Parameter] | None = None,
    n_steps: int = 130,
) -> list[Finding]:
    """Train, evaluating every 20 steps unless *after* says what comes after a step."""
    chosen = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(chosen if trained is None else trained, 0.05)
    criterion = nn.CrossEntropyLoss()
    with td.watch(
        model, criterion, out=run_dir, budget="off", min_free_bytes=0
    ) as hook:
        for step in range(n_steps):
            x, labels = batch()
            loss = criterion(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after is not None:
                after(step)
            elif step % 20 == 19:
                evaluate(model)
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.RunningStatistics()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def freeze(*modules: nn.Module) -> None:
    for module in modules:
        module.requires_grad_(False)


def test_an_evaluation_with_statistics_that_were_never_fed(run_dir: Path) -> None:
    (finding,) = judged(run_dir, network(momentum=0.0))
    assert (finding.tensor, finding.severity) == ("1", Severity.WARNING)
    assert "training never fed" in finding.message
    assert "momentum to 0.1" in finding.advice


def test_buffers_that_are_reset_before_each_evaluation(run_dir: Path) -> None:
    model = network()

    def after(step: int) -> None:
        if step % 20 == 19:
            norm = model[1]
            assert isinstance(norm, nn.BatchNorm1d)
            norm.reset_running_stats()
            evaluate(model)

    (finding,) = judged(run_dir, model, after)
    assert "update_bn" in finding.advice


def test_a_layer_that_evaluation_does_not_call_need_not_be_fed(run_dir: Path) -> None:
    model = network()
    model[2].unused = nn.BatchNorm1d(4)
    assert judged(run_dir, model) == []


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_the_momentum_of_another_framework(run_dir: Path, momentum: float) -> None:
    (finding,) = judged(run_dir, network(momentum=momentum))
    assert finding.severity is Severity.WARNING
    assert f"momentum is {momentum}" in finding.message
    assert f"momentum={round(1 - momentum, 6)}" in finding.advice


def test_large_batches_whose_statistics_do_not_jump_are_a_note(run_dir: Path) -> None:
    model = network(momentum=0.9)
    for each in model[0].parameters():
        nn.init.zeros_(each)
    freeze(model[0])
    (finding,) = judged(run_dir, model)
    assert finding.severity is Severity.INFO


def test_statistics_of_frozen_layers_that_move(run_dir: Path) -> None:
    model = network()
    feed(model)
    freeze(model[0], model[1])
    (finding,) = judged(run_dir, model)
    assert (finding.tensor, finding.severity) == ("1", Severity.WARNING)
    assert "Frozen layers change" in finding.message
    assert "eval()" in finding.advice


def test_frozen_layers_that_move_little_are_a_note(run_dir: Path) -> None:
    model = network()
    for _ in range(60):
        model(batch()[0])
    freeze(model[0], model[1])
    (finding,) = judged(run_dir, model)
    assert finding.severity is Severity.INFO


class Frozen(nn.Module):
    """A detection model: normalizations stay in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        feed(self.body)
        freeze(self.body[0], self.body[1])

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.body[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class Momentum(nn.Module):
    """MoCo: the key encoder trains its statistics, and follows by its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.query = network()
        feed(self.query)
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for ours, theirs in zip(
                self.key.parameters(), self.query.parameters(), strict=True
            ):
                ours.lerp_(theirs, 0.01)
            keys = self.key(x)
        answer: Tensor = self.query(x) + 0.01 * keys
        return answer


def head_only() -> nn.Sequential:
    """Transfer learning on features of an untrained body."""
    model = network()
    freeze(model[0], model[1])
    return model


def test_adapted_normalizations_are_no_fault(run_dir: Path) -> None:
    """TENT trains the scales of normalizations of a frozen model."""
    model = network()
    feed(model)
    freeze(model[0], model[3])
    assert judged(run_dir, model) == []


@pytest.mark.parametrize(
    "make",
    [
        network,
        lambda: network(momentum=None),
        lambda: network(momentum=0.01),
        lambda: network(track_running_stats=False),
        lambda: nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2)
        ),
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 4)),
            nn.InstanceNorm1d(2, affine=True),
            nn.Flatten(),
            nn.Linear(8, 2),
        ),
        Frozen,
        Momentum,
        head_only,
    ],
    ids=[
        "new",
        "cumulative",
        "slow",
        "of_the_batch",
        "layer_norm",
        "instance_norm",
        "frozen_on_purpose",
        "moco",
        "untrained_body",
    ],
)
def test_healthy_normalizations(run_dir: Path, make: Callable[[], nn.Module]) -> None:
    assert judged(run_dir, make()) == []


def test_an_evaluation_before_the_training_is_no_fault(run_dir: Path) -> None:
    model = network()
    evaluate(model)
    assert judged(run_dir, model) == []


def test_what_is_seen_is_written_once(run_dir: Path) -> None:
    judged(run_dir, network(momentum=0.0))
    observations = create_trial(run_dir).observations()
    meant = {Fault.PROBED, Fault.TRAINED_ON}
    (seen,) = [each for each in observations if each.fault not in meant]
    assert seen.fault is Fault.NEVER_FED
    assert seen.numbers["momentum"] == 0
