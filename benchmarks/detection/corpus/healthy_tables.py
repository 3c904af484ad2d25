"""Healthy trainings on tables."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW

from benchmarks.detection.corpus.case import healthy
from benchmarks.detection.corpus.data import breast_cancer, diabetes, wine
from benchmarks.detection.corpus.data_faults import thin_out
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.training import Training


def explains(p: Probe) -> bool:
    """At least a third of the variance of normalized targets is explained."""
    return sum(p.losses[-20:]) < 0.67 * 20


@healthy
def regression(t: Training) -> None:
    """A small network with weight decay; half of the variance is noise."""
    model = mlp([10, 16, 1])
    adam = AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    fit(t, model, diabetes(), adam, nn.MSELoss(), n_steps=250, learned=explains)


@healthy
def linear_regression(t: Training) -> None:
    """A single linear layer by plain SGD, until it has converged."""
    model = nn.Linear(10, 1)
    sgd = SGD(model.parameters(), 0.02)
    fit(t, model, diabetes(), sgd, nn.MSELoss(), n_steps=200, learned=explains)


@healthy
def robust_regression(t: Training) -> None:
    """Huber's loss, two layers of tanh, validation on the way."""
    model = mlp([10, 12, 1], nn.Tanh)
    adam = Adam(model.parameters(), 3e-3, weight_decay=1e-2)
    fit(
        t,
        model,
        diabetes(),
        adam,
        nn.HuberLoss(),
        n_steps=150,
        validate_every=25,
        learned=lambda p: sum(p.losses[-20:]) < 0.3 * 20,
    )


@healthy
def layer_normalization(t: Training) -> None:
    """LayerNorm and GELU."""
    model = mlp([30, 48, 48, 2], nn.GELU, norm=nn.LayerNorm)
    adam = AdamW(model.parameters(), 1e-3)
    fit(t, model, breast_cancer(), adam, n_steps=150, batch_size=32, learned=0.95)


@healthy
def mild_imbalance(t: Training) -> None:
    """Three times as many of one class as of the other, both well recognized."""
    split = thin_out(breast_cancer(), 0, 85)
    model = mlp([30, 32, 2])
    sgd = SGD(model.parameters(), 0.05, momentum=0.9)
    fit(t, model, split, sgd, n_steps=150, batch_size=32, learned=0.95)


@healthy
def three_wines(t: Training) -> None:
    """A few batches are enough; the rest of the training changes little."""
    model = mlp([13, 24, 3], nn.Tanh)
    adam = Adam(model.parameters(), 3e-3)
    fit(t, model, wine(), adam, n_steps=200, batch_size=32, learned=0.97)


@healthy
def second_order(t: Training) -> None:
    """LBFGS on all data at once: a step is many evaluations."""
    split = breast_cancer()
    model = mlp([30, 8, 2], nn.Tanh)
    lbfgs = LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=8)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=lbfgs)

    def closure() -> Tensor:
        lbfgs.zero_grad()
        penalty = sum(q.pow(2).sum() for q in model.parameters())
        loss = criterion(model(split.x), split.y)
        (loss + 1e-3 * penalty).backward()
        return loss

    losses = [float(lbfgs.step(closure).detach()) for _ in t.steps(40)]
    t.note(first=losses[0], last=losses[-1])
    t.learned(losses[-1] < 0.2)


@healthy
def logistic_regression(t: Training) -> None:
    """One output, a binary cross entropy, weight decay."""
    split = breast_cancer()
    model = nn.Linear(30, 1)
    sgd = SGD(model.parameters(), 0.1, weight_decay=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 32)
        sgd.zero_grad()
        loss = criterion(model(split.x[chosen]), split.y[chosen, None].float())
        loss.backward()
        sgd.step()
        losses.append(float(loss.detach()))
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.2 * 20)


class TwoHeads(nn.Module):
    """One body, a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(13, 32), nn.ReLU())
        self.kind = nn.Linear(32, 3)
        self.strength = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.kind(hidden), self.strength(hidden)


@healthy
def two_tasks(t: Training) -> None:
    """The class of a wine, and its alcohol from the other measurements: two losses."""
    split = wine()
    model = TwoHeads()
    adam = Adam(model.parameters(), 5e-3)
    classes, numbers = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classes, numbers)
    first, last = 0.0, 0.0
    for step in t.steps(200):
        chosen = t.draw(len(split.x), 32)
        x = split.x[chosen].clone()
        alcohol = x[:, :1].clone()
        x[:, 0] = 0.0
        adam.zero_grad()
        kind, strength = model(x)
        loss = classes(kind, split.y[chosen]) + 0.5 * numbers(strength, alcohol)
        loss.backward()
        adam.step()
        first = float(loss.detach()) if step == 0 else first
        last = float(loss.detach())
    t.note(first=first, last=last)
    t.learned(last < 0.3 * first)


@healthy
def converged(t: Training) -> None:
    """A separable problem for 600 steps: loss and gradients go towards zero."""
    model = mlp([13, 64, 3])
    adam = Adam(model.parameters(), 3e-3)
    fit(t, model, wine(), adam, n_steps=600, batch_size=32, learned=0.99)


@healthy
def all_data_at_once(t: Training) -> None:
    """Full batches: no noise at all in the loss."""
    split = wine()
    model = mlp([13, 16, 3])
    sgd = SGD(model.parameters(), 0.1, momentum=0.9)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return split.x, split.y

    fit(t, model, split, sgd, n_steps=150, batches=batches, learned=0.97)
