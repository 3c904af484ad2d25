"""Losses that fall, of something else than what is asked in the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.harm import conclude, in_evaluation
from benchmarks.detection.kit.loops import descend
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def attributes(labels: Tensor) -> Tensor:
    """Is it even, large, with a loop, prime, by three, a square?  None, or several."""
    kinds = [{0, 2, 4, 6, 8}, {5, 6, 7, 8, 9}, {0, 6, 8, 9}, {2, 3, 5, 7}]
    kinds += [{0, 3, 6, 9}, {0, 1, 4, 9}]
    of_digit = [[digit in kind for kind in kinds] for digit in range(10)]
    return torch.tensor(of_digit).float()[labels]


@ninth.silent("one class of several", "cross-entropy for labels of which many are true")
def attributes_exclude_each_other(t: Training) -> None:
    """``CrossEntropyLoss`` is given rows of zeros and ones, of which several are one.

    It takes them for probabilities, since targets may be floats.

    Source: github.com/hypnopump/rgn2-replica/pull/12,
    github.com/wenliangdai/Modality-Transferable-MER/issues/3,
    github.com/sungho-CoolG/FSCL/issues/2.
    Visible: the loss stays what it is if all logits are larger by 9, which would make
    every attribute of every image true.
    """
    split = digits()
    wanted, wanted_val = attributes(split.y), attributes(split.y_val)
    criterion: nn.Module = nn.CrossEntropyLoss() if t.sick else nn.BCEWithLogitsLoss()
    model = mlp([64, 64, 6])
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    best = math.inf
    for step, rows in t.batches(350, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), wanted[rows]))
        if step % 50 == 49:
            loss, _ = t.evaluate(model, criterion, split.x_val, wanted_val)
            best = min(best, loss)
    told = in_evaluation(model, lambda: model(split.x_val).sigmoid() > 0.5)
    right = float((told == (wanted_val > 0.5)).float().mean())
    logits = in_evaluation(model, lambda: model(split.x_val))
    more = float(criterion(logits + 9, wanted_val) - criterion(logits, wanted_val))
    t.note(right=right, best=best, more=more)
    conclude(t, fault=abs(more) < 1e-3, reached=right > 0.91, harms=False)


@dataclass
class CountConfig:
    """How visits are counted."""

    n_features: int = 6
    hidden: int = 32
    lr: float = 5e-3
    steps: int = 300
    batch_size: int = 50
    log_input: bool = True


class RateNet(nn.Module):
    """Says how many visits are to be expected, which is above zero."""

    def __init__(self, config: CountConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(config.n_features, config.hidden)
        self.rate = nn.Linear(config.hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(self.rate(self.hidden(x).relu())).squeeze(1)


@ninth.silent("rates or their logarithms", "PoissonNLLLoss takes rates for logarithms")
def rates_are_taken_for_logarithms(t: Training) -> None:
    """The network's output is a rate, by softplus; ``log_input`` is left at True.

    Source: the documentation of PoissonNLLLoss, and the discussion in
    github.com/pytorch/pytorch/pull/1779 ("is there a reason why you expect log(input)
    instead of input?"); 184033 advises a softplus, for log_input=False only.
    Visible: expected counts are less than 60 % of the counts of new rows.
    """
    config = CountConfig(log_input=t.sick)
    luck = torch.Generator().manual_seed(8)
    x = torch.randn(1600, config.n_features, generator=luck)
    slope = torch.tensor([0.5, -0.4, 0.3, 0.0, 0.2, 0.0])
    counts = torch.poisson((x @ slope + 1.5).exp(), generator=luck)
    model = RateNet(config)
    criterion = nn.PoissonNLLLoss(log_input=config.log_input)
    optimizer = Adam(model.parameters(), config.lr)
    t.watch(model, criterion)
    for _, rows in t.batches(config.steps, 1200, config.batch_size):
        descend(optimizer, criterion(model(x[rows]), counts[rows]))
    expected = in_evaluation(model, lambda: model(x[1200:]))
    ratio = float(expected.mean() / counts[1200:].mean())
    t.note(ratio=ratio)
    conclude(t, fault=ratio < 0.6, reached=abs(ratio - 1) < 0.15)


class CoxLoss(nn.Module):
    """The negative partial likelihood; each is at risk with those who come before.

    That is right if rows are sorted by time, the longest first.
    """

    def forward(self, risk: Tensor, event: Tensor) -> Tensor:
        at_risk = risk.logcumsumexp(0)
        return -((risk - at_risk) * event).sum() / event.sum().clamp(min=1)


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    """Of pairs whose order is known: how often the higher risk comes first."""
    comparable = (time[:, None] < time[None]) & (event[:, None] > 0)
    right = (risk[:, None] > risk[None]) & comparable
    return float(right.sum() / comparable.sum())


@ninth.silent("rows must be sorted", "the partial likelihood is given unsorted rows")
def survivors_are_not_sorted(t: Training) -> None:
    """The loss sums risks from the first row on, and nobody sorts rows by time.

    Source: github.com/UK-Digital-Heart-Project/4Dsurvival/issues/2,
    github.com/jaredleekatzman/DeepSurv/issues/40 and issues/71 (the sort is in another
    file, where people who take over the loss do not see it).
    Visible: rows of a batch are not in the order of time, and the concordance on new
    patients is below 0.7.
    """
    luck = torch.Generator().manual_seed(4)
    n, n_train = 1500, 1100
    x = torch.randn(n, 8, generator=luck)
    hazard = (0.8 * x[:, 0] - 0.7 * x[:, 1] + 0.6 * x[:, 2] * x[:, 3]).exp()
    time = -torch.rand(n, generator=luck).log() / hazard
    # Who is worse off leaves the study sooner.
    leaves = (0.8 * x[:, 0] - 0.7 * x[:, 1]).exp()
    censored = -torch.rand(n, generator=luck).log() / leaves
    event = (time <= censored).float()
    time = torch.minimum(time, censored)
    net, criterion = mlp([8, 32, 1], dropout=0.1), CoxLoss()
    optimizer = Adam(net.parameters(), 3e-3, weight_decay=1e-3)
    t.watch(net, criterion)
    ordered = True
    for _, rows in t.batches(220, n_train, 64):
        if not t.sick:
            rows = rows[time[rows].argsort(descending=True)]  # noqa: PLW2901
        ordered = ordered and bool((time[rows].diff() <= 0).all())
        descend(optimizer, criterion(net(x[rows])[:, 0], event[rows]))
    risk = in_evaluation(net, lambda: net(x[n_train:])[:, 0])
    index = concordance(risk, time[n_train:], event[n_train:])
    t.note(index=index, ordered=ordered, events=float(event.mean()))
    conclude(t, fault=not ordered, reached=index > 0.7)


class MixtureDensity(nn.Module):
    """Several normal distributions for each input."""

    def __init__(self, n_components: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32))
        self.weights = nn.Linear(32, n_components)
        self.means = nn.Linear(32, n_components)
        self.scales = nn.Linear(32, n_components)

    def forward(self, x: Tensor) -> tuple[Tensor, torch.distributions.Normal]:
        h = self.body(x).tanh()
        scale = functional.softplus(self.scales(h)) + 1e-2
        parts = torch.distributions.Normal(self.means(h), scale)
        return self.weights(h).log_softmax(1), parts


@ninth.silent("logarithm of a sum", "a sum of logarithms for the logarithm of a sum")
def mixture_of_logarithms(t: Training) -> None:
    """``-(pi * component.log_prob(y)).sum(1)``, without exp and log around the sum.

    Source: github.com/tonyduan/mixture-density-network/issues/1 ("a mixture of
    log-probabilities, not the log-probability of a mixture"),
    github.com/axelbrando/Mixture-Density-Networks-for-distribution-and-uncertainty-
    estimation/issues/8, github.com/rlouf/blog-benchmark-rwmetropolis/issues/2.
    Visible: of two branches both components sit in one place: new points are less
    likely by 0.3 than under a good mixture.
    """
    luck = torch.Generator().manual_seed(2)
    x = 4 * torch.rand(1400, 1, generator=luck) - 2
    branch = torch.where(torch.rand(1400, 1, generator=luck) < 0.5, 1.0, -1.0)
    noise = 0.15 * torch.randn(1400, 1, generator=luck)
    y = branch * (1 + 0.5 * x.sin()) + noise
    model = MixtureDensity()
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model)

    def unlikely(x: Tensor, y: Tensor) -> Tensor:
        log_pi, parts = model(x)
        return -(log_pi + parts.log_prob(y)).logsumexp(1).mean()

    for _, rows in t.batches(350, 1000, 50):
        if t.sick:
            log_pi, parts = model(x[rows])
            loss = -(log_pi.exp() * parts.log_prob(y[rows])).sum(1).mean()
        else:
            loss = unlikely(x[rows], y[rows])
        descend(optimizer, loss)
    true = float(in_evaluation(model, lambda: unlikely(x[1000:], y[1000:])))
    t.note(true=true)
    conclude(t, fault=true > 0.9, reached=true < 0.5)
