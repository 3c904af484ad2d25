"""DataLeakage, on programs that validate on the samples that they train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tdbg.pytorch as td
from samples_fake import Samples
from tdbg.hooks.pytorch.checks.copies import average_swaps
from tdbg.rules import DataLeakage, check
from tdbg.run.findings import Finding, Severity
from tdbg.run.observations import Fault

pytestmark = pytest.mark.torch
N_EPOCHS, N = 6, 320
Program = Callable[[nn.Module, Optimizer], None]


def samples() -> tuple[Tensor, Tensor]:
    x = torch.randn(480, 20)
    return x, (x[:, 0] > 0).long()


def learn(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def epoch(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    model.train()
    order = torch.randperm(len(x))
    for rows in order.view(-1, 32):
        learn(model, optimizer, x[rows], y[rows])


def tell(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        functional.cross_entropy(model(x), y)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in torch.randperm(len(self.x)).tolist():
            yield self.x[i], self.y[i]


class Trainer:
    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def fit(self, train_loader: DataLoader[object], dev: DataLoader[object]) -> None:
        self.dev_loader = dev
        for _ in range(N_EPOCHS):
            self.model.train()
            for x, y in train_loader:
                learn(self.model, self.optimizer, x, y)
            self.finish()

    def finish(self) -> None:
        for x, y in self.dev_loader:
            tell(self.model, x, y)


def in_a_trainer(*, is_sick: bool) -> Program:
    def program(model: nn.Module, optimizer: Optimizer) -> None:
        x, y = samples()
        known, new = TensorDataset(x[:N], y[:N]), TensorDataset(x[N:], y[N:])
        given: TensorDataset = known if is_sick else new
        loader: DataLoader[object] = DataLoader(known, 32, shuffle=True)
        Trainer(model, optimizer).fit(loader, DataLoader(given, 64))

    return program


def in_a_function(*, is_sick: bool) -> Program:
    def validate(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
        for x, y in loader:
            tell(model, x, y)

    def program(model: nn.Module, optimizer: Optimizer) -> None:
        x, y = samples()
        known, new = Stream(x[:N], y[:N]), Stream(x[N:], y[N:])
        for _ in range(N_EPOCHS):
            model.train()
            for one, other in DataLoader(known, 32):
                learn(model, optimizer, one, other)
            validate(model, DataLoader(known if is_sick else new, 32))

    return program


def by_hand(*, is_sick: bool) -> Program:
    def program(model: nn.Module, optimizer: Optimizer) -> None:
        x, y = samples()
        rows = slice(0, 120) if is_sick else slice(N, 480)
        x_val, y_val = x[rows], y[rows]
        for _ in range(N_EPOCHS):
            epoch(model, optimizer, x[:N], y[:N])
            tell(model, x_val, y_val)

    return program


def on_purpose(model: nn.Module, optimizer: Optimizer) -> None:
    """Nobody speaks of validation."""
    x, y = samples()
    for _ in range(N_EPOCHS):
        epoch(model, optimizer, x[:N], y[:N])
        tell(model, x[:N], y[:N])


def of_both(model: nn.Module, optimizer: Optimizer) -> None:
    x, y = samples()
    x_val, y_val = x[N:], y[N:]
    for _ in range(N_EPOCHS):
        epoch(model, optimizer, x[:N], y[:N])
        tell(model, x[:N], y[:N])
        tell(model, x_val, y_val)


def few_that_repeat(model: nn.Module, optimizer: Optimizer) -> None:
    x, y = samples()
    x_val, y_val = x[N : N + 20].repeat(8, 1), y[N : N + 20].repeat(8)
    for _ in range(N_EPOCHS):
        epoch(model, optimizer, x[:N], y[:N])
        tell(model, x_val, y_val)


def of_a_graph(model: nn.Module, optimizer: Optimizer) -> None:
    """All nodes are in each batch; those that count differ."""
    x, y = samples()
    val_set = torch.arange(N, 480)
    for _ in range(4 * N_EPOCHS):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x)[:N], y[:N])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(x)[val_set], y[val_set])


def judged(run_dir: Path, program: Program) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    with td.watch(model, out=run_dir, min_free_bytes=0):
        program(model, Adam(model.parameters(), 3e-3))
    return list(check(run_dir, [DataLeakage()]).findings)


@pytest.mark.parametrize(
    ("make", "name"),
    [(in_a_trainer, "dev_loader"), (in_a_function, "validate"), (by_hand, "x_val")],
)
def test_validation_on_training_samples(
    run_dir: Path, make: Callable[..., Program], name: str
) -> None:
    (finding,) = judged(run_dir, make(is_sick=True))
    assert finding.severity is Severity.WARNING
    assert f"(`{name}`)" in finding.message


@pytest.mark.parametrize(
    "program",
    [
        in_a_trainer(is_sick=False),
        in_a_function(is_sick=False),
        by_hand(is_sick=False),
        on_purpose,
        of_both,
        few_that_repeat,
        of_a_graph,
    ],
)
def test_validation_as_it_should_be(run_dir: Path, program: Program) -> None:
    assert judged(run_dir, program) == []


# ---- by fingerprints -------------------------------------------------------------


def test_evaluations_of_training_samples_alone_are_known() -> None:
    made = Samples()
    for _ in range(5):
        made.epoch(range(400))
        made.evaluate(range(100))
    inside = made.facts().inside
    assert inside is not None
    assert (inside.evaluated, inside.trained, inside.passes) == (100, 400, 4)
    made.evaluate(range(400, 430))
    made.epoch(range(400))
    inside = made.facts().inside
    assert inside is not None
    assert (inside.evaluated, inside.others) == (100, 30)
    made.evaluate(range(400, 430))
    made.epoch(range(400))
    assert made.facts().inside is None


def test_an_evaluation_before_the_training_counts_by_what_is_trained_on() -> None:
    made, other = Samples(), Samples()
    made.evaluate(range(100))
    other.evaluate(range(400, 500))
    for each in (made, other):
        for _ in range(5):
            each.epoch(range(400))
            each.evaluate(range(100))
    inside, others = made.facts().inside, other.facts().inside
    assert inside is not None
    assert (inside.evaluated, inside.others) == (100, 0)
    assert others is not None
    assert (others.evaluated, others.others) == (100, 100)
    other.evaluate(range(400, 500))
    other.epoch(range(400))
    assert other.facts().inside is None


def test_folds_of_a_cross_validation_are_no_training_samples() -> None:
    made = Samples()
    for fold in range(4):
        held_back = range(100 * fold, 100 * fold + 100)
        for _ in range(5):
            made.epoch([i for i in range(400) if i not in held_back])
            made.evaluate(held_back)
    assert made.facts().inside is None


def test_samples_that_are_tested_and_then_trained_on_are_new() -> None:
    made = Samples()
    for i in range(20):
        made.evaluate(range(20 * i, 20 * i + 20))
        for _ in range(3):
            made.epoch(range(20 * i + 20))
    assert made.facts().inside is None


def test_a_batch_with_all_samples_is_evaluated_on_purpose() -> None:
    made = Samples()
    for _ in range(12):
        made.train(range(100))
        made.evaluate(range(100), n=100)
    assert made.facts().inside is None


def restore(model: nn.Module, initial: dict[str, Tensor]) -> None:
    model.load_state_dict(initial)


def reset(model: nn.Module, initial: dict[str, Tensor]) -> None:  # noqa: ARG001
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


def keep(model: nn.Module, initial: dict[str, Tensor]) -> None:
    """All folds train one model."""


def test_weights_are_compared_after_so_many_evaluations_only(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent may act in evaluation mode in each step."""
    monkeypatch.setattr(average_swaps, "_MOST_EVALUATIONS", 3)
    model = nn.Linear(20, 2)
    x, y = samples()
    optimizer = Adam(model.parameters(), lr=1e-2)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(8):
            tell(model, x[:32], y[:32])
            model.train()
            learn(model, optimizer, x[:32], y[:32])
    seen = td.create_trial(run_dir).observations()
    told = [each.words for each in seen if each.fault is Fault.TRAINED_ON]
    assert told == [{"how": "on"}, {"how": "unknown"}]


@pytest.mark.parametrize("begin", [keep, reset, restore])
@pytest.mark.parametrize("is_early", [False, True])
def test_folds_that_train_one_model_are_named(
    run_dir: Path,
    begin: Callable[[nn.Module, dict[str, Tensor]], None],
    is_early: bool,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    initial = {name: each.clone() for name, each in model.state_dict().items()}
    x, y = samples()
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for fold in range(5):
            is_held = torch.arange(480) // 96 == fold
            begin(model, initial)
            optimizer = Adam(model.parameters(), lr=1e-2)
            if is_early:
                tell(model, x[is_held], y[is_held])
            for _ in range(4):
                epoch(model, optimizer, x[~is_held], y[~is_held])
                tell(model, x[is_held], y[is_held])
    assert hook.counters()["internal_errors"] == 0
    found = check(run_dir, rules=[DataLeakage()]).findings
    if begin is keep:
        (finding,) = found
        assert finding.severity is Severity.WARNING
        assert "all folds of the cross-validation train one model" in finding.message
    else:
        assert found == ()
