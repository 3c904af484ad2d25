"""Healthy trainings on tables whose loss is neither an error nor a cross-entropy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from benchmarks.detection.kit.case import fifth
from benchmarks.detection.kit.data import (
    Split,
    breast_cancer,
    diabetes,
    digits,
    houses,
    parted,
    wine,
)
from benchmarks.detection.kit.loops import mean, noted_accuracy, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def lifetimes(n: int = 1200) -> tuple[Split, Tensor]:
    """Patients of 8 measurements; how long each was seen, and whether it then died.

    The risk is a bent function of three measurements; a third is censored.
    """
    data = torch.Generator().manual_seed(4)
    x = torch.randn(n, 8, generator=data)
    risk = x[:, 0] + 0.8 * x[:, 1].abs() - x[:, 2] * (x[:, 0] > 0)
    death = -torch.rand(n, generator=data).log() / risk.exp()
    leaves = -2.5 * torch.rand(n, generator=data).log()
    seen = torch.minimum(death, leaves)
    split = parted(x, torch.stack((seen, (death <= leaves).float()), 1), 2, 4)
    return split, split.y[:, 0].quantile(torch.linspace(0.1, 0.9, 9))


def concordance(risk: Tensor, seen: Tensor, died: Tensor) -> float:
    """Share of comparable pairs of which the one with more risk died before."""
    pairs = (seen[:, None] < seen) & (died[:, None] > 0)
    return float((risk[:, None] > risk)[pairs].float().mean())


def cox(risk: Tensor, outcome: Tensor) -> Tensor:
    """Negative partial log likelihood (Breslow), of a batch."""
    order = outcome[:, 0].argsort(descending=True)
    risk, died = risk[order, 0], outcome[order, 1]
    return -((risk - risk.logcumsumexp(0)) * died).sum() / died.sum().clamp(min=1)


@fifth.healthy
def proportional_hazards(t: Training) -> None:
    """DeepSurv, batches of 128; Katzman 2018, pycox.

    The loss stays near the log of the risk set. Learned: concordance on the rest.
    """
    split, _ = lifetimes()
    model = mlp((8, 32, 32, 1), dropout=0.1)
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 128)
        return cox(model(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    model.eval()
    with torch.no_grad():
        right = concordance(model(split.x_val)[:, 0], *split.y_val.T)
    t.note(concordance=right)
    t.learned(right > 0.68)


@fifth.healthy
def hazards_of_intervals(t: Training) -> None:
    """The chance to die in each of ten intervals; nnet-survival, Gensheimer 2019."""
    split, cuts = lifetimes()
    model = mlp((8, 32, 32, 10))
    t.watch(model)
    places = torch.arange(10)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 128)
        seen, died = split.y[rows].T
        interval = torch.bucketize(seen, cuts)[:, None]
        dies = ((places == interval) & (died[:, None] > 0)).float()
        at_risk = (places <= interval).float()
        cost = nn.functional.binary_cross_entropy_with_logits
        return cost(model(split.x[rows]), dies, at_risk, reduction="sum") / len(rows)

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        risk = -nn.functional.logsigmoid(-model(split.x_val)).cumsum(1).mean(1)
    right = concordance(risk, *split.y_val.T)
    t.note(concordance=right)
    t.learned(right > 0.68)


@fifth.healthy
def ranks_by_thresholds(t: Training) -> None:
    """Ordinal regression: five grades by four shared logits; CORAL, Cao 2020."""
    split = diabetes()
    cuts = split.y.quantile(torch.tensor([0.2, 0.4, 0.6, 0.8]))
    grade, grade_val = (torch.bucketize(y[:, 0], cuts) for y in (split.y, split.y_val))
    body = mlp((10, 16, 1))
    model = nn.ModuleDict({"body": body})
    bars = nn.Parameter(torch.tensor([1.0, 0.3, -0.3, -1.0]))
    model.register_parameter("bars", bars)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        above = (grade[rows, None] > torch.arange(4)).float()
        return criterion(body(split.x[rows]) + bars, above)

    train(t, loss_of, Adam(model.parameters(), 1e-2, weight_decay=1e-3), n_steps=200)
    with torch.no_grad():
        said = (body(split.x_val) + bars > 0).sum(1)
    off = float((said - grade_val).abs().float().mean())
    middle = float((grade_val - 2).abs().float().mean())
    t.note(off=off, always_the_middle=middle)
    t.learned(off < 0.85 * middle)


@fifth.healthy
def upper_expectile(t: Training) -> None:
    """Squares weigh 0.9 above and 0.1 below; Newey and Powell 1987, IQL's value.

    Learned: the loss is well below that of the best constant.
    """
    split = houses(scaled=True)
    model = mlp((8, 32, 32, 1))
    t.watch(model)

    def cost(said: Tensor, wanted: Tensor) -> Tensor:
        over = wanted - said
        return (torch.where(over > 0, 0.9, 0.1) * over**2).mean()

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return cost(model(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        reached = float(cost(model(split.x_val), split.y_val))
    constants = torch.linspace(-1, 3, 200)
    best = min(float(cost(c, split.y_val)) for c in constants)
    t.note(validation=reached, best_constant=best)
    t.learned(reached < 0.5 * best)


@fifth.healthy
def counts_with_too_many_zeros(t: Training) -> None:
    """Zero-inflated Poisson regression; Lambert 1992. Two thirds of counts are 0."""
    data = torch.Generator().manual_seed(8)
    x = torch.randn(2000, 5, generator=data)
    rate = (0.5 + 0.8 * x[:, 0]).exp()
    never = torch.rand(2000, generator=data) < (x[:, 1] + 0.3).sigmoid()
    y = torch.where(never, 0.0, torch.poisson(rate, generator=data))
    model = mlp((5, 32, 2), nn.Tanh)
    t.watch(model)

    def cost(said: Tensor, wanted: Tensor) -> Tensor:
        log_rate, zero = said.T
        ls = nn.functional.logsigmoid
        counted = wanted * log_rate - log_rate.exp() - (wanted + 1).lgamma() + ls(-zero)
        none = torch.logaddexp(ls(zero), ls(-zero) - log_rate.exp())
        return -torch.where(wanted > 0, counted, none).mean()

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1500, 128)
        return cost(model(x[rows]), y[rows])

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=300)
    with torch.no_grad():
        reached = float(cost(model(x[1500:]), y[1500:]))
        constant = min(
            float(cost(torch.tensor([[a, b]]), y[1500:]))
            for a in (0.5, 1.0, 1.5, 2.0)
            for b in (-1.0, -0.5, 0.0, 0.5, 1.0)
        )
    t.note(validation=reached, best_constant=constant)
    t.learned(reached < constant - 0.15)


class Kernel(nn.Module):
    """Radial basis functions of what a network makes of the inputs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.length = nn.Parameter(torch.zeros(()))
        self.scale = nn.Parameter(torch.zeros(()))
        self.noise = nn.Parameter(torch.tensor(-1.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.body(a), self.body(b)
        square = ((a[:, None] - b) ** 2).sum(-1)
        return self.scale.exp() * (-square / 2 / (2 * self.length).exp()).exp()

    def known(self, x: Tensor) -> Tensor:
        """Cholesky factor of the covariance of what was measured."""
        noise = (self.noise.exp() + 1e-4) * torch.eye(len(x))
        return torch.linalg.cholesky(self(x, x) + noise)

    def evidence(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative log marginal likelihood of a point."""
        factor = self.known(x)
        solved = torch.cholesky_solve(y, factor)
        fit = (y * solved).sum() / 2 + factor.diagonal().log().sum()
        return fit / len(x) + math.log(2 * math.pi) / 2

    def predicted(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        """The mean at other places."""
        solved = torch.cholesky_solve(y, self.known(x))
        out: Tensor = self(at, x) @ solved
        return out


@fifth.healthy
def exact_gaussian_process(t: Training) -> None:
    """Three hyperparameters by the marginal likelihood of all data; GPyTorch's first.

    Inputs are one column from 0 to 10, as they are. Learned: it explains most.
    """
    data = torch.Generator().manual_seed(2)
    x = 10 * torch.rand(120, 1, generator=data)
    y = x.sin() + 0.3 * (3 * x).cos() + 0.1 * torch.randn(120, 1, generator=data)
    model = Kernel(nn.Identity())
    t.watch(model)
    optimizer = Adam(model.parameters(), 0.05)
    train(t, lambda _: model.evidence(x[:90], y[:90]), optimizer, n_steps=100)
    with torch.no_grad():
        left = (model.predicted(x[:90], y[:90], x[90:]) - y[90:]).pow(2).mean()
    t.note(unexplained=float(left / y.var()))
    t.learned(left < 0.15 * y.var())


@fifth.healthy
def deep_kernel(t: Training) -> None:
    """A Gaussian process on features that a network makes; Wilson 2016."""
    split = houses(scaled=True)
    model = Kernel(mlp((8, 32, 2), nn.Tanh))
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 128).unique()
        return model.evidence(split.x[rows], split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=200)
    with torch.no_grad():
        said = model.predicted(split.x[:500], split.y[:500], split.x_val)
    left = (said - split.y_val).pow(2).mean()
    t.note(unexplained=float(left / split.y_val.var()))
    t.learned(left < 0.4 * split.y_val.var())


class Uncertain(nn.Module):
    """A linear layer whose weights are drawn anew each time; Blundell 2015."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.middle = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.width = nn.Parameter(torch.full((n_out, n_in), -4.0))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        width = nn.functional.softplus(self.width)
        spread = ((x**2) @ (width**2).T + 1e-8).sqrt()
        return x @ self.middle.T + self.bias + spread * torch.randn_like(spread)

    def complexity(self) -> Tensor:
        """Divergence from a normal prior."""
        width = nn.functional.softplus(self.width)
        return (width**2 + self.middle**2 - 1 - 2 * width.log()).sum() / 2


@fifth.healthy
def weights_that_are_distributions(t: Training) -> None:
    """Bayes by backprop: likelihood, and the divergence shared among batches.

    Most of the loss is the divergence. Learned: mean of ten draws on held-out data.
    """
    split = digits()
    layers = [Uncertain(64, 64), Uncertain(64, 10)]
    model, criterion = (
        nn.Sequential(layers[0], nn.ReLU(), layers[1]),
        (nn.CrossEntropyLoss()),
    )
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        divergence = layers[0].complexity() + layers[1].complexity()
        return criterion(model(split.x[rows]), split.y[rows]) + divergence / (
            10 * len(split.x)
        )

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=350)
    with torch.no_grad():
        chance = sum(model(split.x_val).softmax(1) for _ in range(10))
    right = float((torch.as_tensor(chance).argmax(1) == split.y_val).float().mean())
    t.note(validation_accuracy=right)
    t.learned(right > 0.88)


@fifth.healthy
def evidence_for_classes(t: Training) -> None:
    """Evidential classification with a penalty that sets in slowly; Sensoy 2018."""
    split = digits()
    model = mlp((64, 64, 10))
    t.watch(model)

    def loss_of(step: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        alpha = nn.functional.softplus(model(split.x[rows])) + 1
        total = alpha.sum(1, keepdim=True)
        right = nn.functional.one_hot(split.y[rows], 10).float()
        share = alpha / total
        fit = ((right - share) ** 2 + share * (1 - share) / (total + 1)).sum(1)
        wrong = right + (1 - right) * alpha
        flat = torch.distributions.Dirichlet(torch.ones(10))
        extra = torch.distributions.kl_divergence(
            torch.distributions.Dirichlet(wrong), flat.expand((len(rows),))
        )
        return (fit + min(1.0, step / 200) * 0.1 * extra).mean()

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    t.learned(noted_accuracy(t, model, split) > 0.9)


@fifth.healthy
def near_to_the_center(t: Training) -> None:
    """Deep SVDD: normal pictures are drawn to a fixed point; Ruff 2018.

    No biases, and only pictures of one class. Learned: others lie farther away.
    """
    split = digits()
    ones = split.x[split.y == 0]
    model = nn.Sequential(
        nn.Linear(64, 48, bias=False), nn.LeakyReLU(), nn.Linear(48, 16, bias=False)
    )
    with torch.no_grad():
        center = model(ones).mean(0)
    t.watch(model)
    losses = train(
        t,
        lambda _: ((model(ones[t.draw(len(ones), 32)]) - center) ** 2).sum(1).mean(),
        Adam(model.parameters(), 1e-3, weight_decay=1e-6),
        n_steps=200,
    )
    with torch.no_grad():
        far = ((model(split.x_val) - center) ** 2).sum(1)
    inside = split.y_val == 0
    auc = float((far[inside, None] < far[~inside]).float().mean())
    t.note(auc=auc, last=mean(losses[-10:]))
    t.learned(auc > 0.95)


class Columns(nn.Module):
    """FT-transformer: each column is a token of its own; Gorishniy 2021."""

    def __init__(self, n_columns: int, n_out: int, width: int = 32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_columns, width) * 0.2)
        self.bias = nn.Parameter(torch.randn(n_columns, width) * 0.2)
        self.summary = nn.Parameter(torch.randn(width) * 0.2)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_out))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[..., None] * self.weight + self.bias
        summary = self.summary.expand(len(x), 1, -1)
        out: Tensor = self.head(self.layers(torch.cat((summary, tokens), 1))[:, 0])
        return out


@fifth.healthy
def columns_as_tokens(t: Training) -> None:
    """Attention among 13 measurements of wines; AdamW."""
    split = wine()
    model, criterion = Columns(13, 3), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 32)
        return criterion(model(split.x[rows]), split.y[rows])

    train(t, loss_of, AdamW(model.parameters(), 1e-3, weight_decay=1e-5), n_steps=120)
    t.learned(noted_accuracy(t, model, split) > 0.9)


@fifth.healthy
def sum_of_curves(t: Training) -> None:
    """A neural additive model: a small network for each column; Agarwal 2021."""
    split = houses(scaled=True)
    model = nn.ModuleList(mlp((1, 16, 16, 1)) for _ in range(8))
    criterion = nn.MSELoss()
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        parts = [net(x[:, i : i + 1]) for i, net in enumerate(model)]
        return torch.stack(parts).sum(0)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=250)
    with torch.no_grad():
        left = float(criterion(said(split.x_val), split.y_val) / split.y_val.var())
    t.note(unexplained=left)
    t.learned(left < 0.5)


@fifth.healthy
def soft_decision_tree(t: Training) -> None:
    """A tree of depth 4 whose inner nodes are gates; Frosst and Hinton 2017."""
    split = digits()
    gates, leaves = nn.Linear(64, 15), nn.Linear(16, 10, bias=False)
    model = nn.ModuleDict({"gates": gates, "leaves": leaves})
    t.watch(model)

    def chance(x: Tensor) -> Tensor:
        right, path = (2 * gates(x)).sigmoid(), torch.ones(len(x), 1)
        for depth in range(4):
            node = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            path = torch.stack((path * (1 - node), path * node), 2).flatten(1)
        out: Tensor = path @ leaves.weight.T.log_softmax(1).exp()
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        said = (chance(split.x[rows]) + 1e-8).log()
        return nn.functional.nll_loss(said, split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 2e-2), n_steps=400)
    with torch.no_grad():
        right = chance(split.x_val).argmax(1) == split.y_val
    t.note(validation_accuracy=float(right.float().mean()))
    t.learned(right.float().mean() > 0.6)


@fifth.healthy
def second_order_interactions(t: Training) -> None:
    """A factorization machine on products of columns; Rendle 2010.

    Generated: y is a product of two pairs of columns, so no linear term helps.
    """
    data = torch.Generator().manual_seed(6)
    x = torch.randn(2000, 10, generator=data)
    y = (x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3])[:, None]
    y = y + 0.2 * torch.randn(2000, 1, generator=data)
    linear, factors = nn.Linear(10, 1), nn.Linear(10, 8, bias=False)
    nn.init.normal_(factors.weight, std=0.1)
    model, criterion = (
        nn.ModuleDict({"linear": linear, "factors": factors}),
        (nn.MSELoss()),
    )
    t.watch(model, criterion)

    def said(of: Tensor) -> Tensor:
        square = (of**2) @ (factors.weight**2).T
        pairs = (factors(of) ** 2 - square).sum(1, keepdim=True) / 2
        out: Tensor = linear(of) + pairs
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1500, 64)
        return criterion(said(x[rows]), y[rows])

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=400)
    with torch.no_grad():
        left = float(criterion(said(x[1500:]), y[1500:]) / y.var())
    t.note(unexplained=left)
    t.learned(left < 0.3)


@fifth.healthy
def lists_in_order(t: Training) -> None:
    """ListNet: the softmax of scores is to be that of grades; Cao 2007.

    The loss has the entropy of the grades as floor. Learned: pairs in right order.
    """
    split = diabetes()
    model = mlp((10, 16, 1), dropout=0.1)
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 16 * 8)
        scores = model(split.x[rows]).view(16, 8)
        wanted = split.y[rows].view(16, 8).softmax(1)
        return -(wanted * scores.log_softmax(1)).sum(1).mean()

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=200)
    model.eval()
    with torch.no_grad():
        score, y = model(split.x_val)[:, 0], split.y_val[:, 0]
    pairs = y[:, None] > y
    right = float((score[:, None] > score)[pairs].float().mean())
    t.note(pairs_in_order=right)
    t.learned(right > 0.65)


@fifth.healthy
def support_vectors(t: Training) -> None:
    """A linear machine by subgradients of the hinge loss; Pegasos, Shalev-Shwartz 2007.

    Most samples of a batch are beyond the margin and have no gradient.
    """
    split = breast_cancer()
    model = nn.Linear(30, 1)
    t.watch(model)
    optimizer = SGD(model.parameters(), 0.05, weight_decay=1e-3)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 32)
        sign = 2 * split.y[rows, None].float() - 1
        return (1 - sign * model(split.x[rows])).relu().mean()

    train(t, loss_of, optimizer, n_steps=200)
    with torch.no_grad():
        right = (model(split.x_val)[:, 0] > 0) == (split.y_val == 1)
    t.note(validation_accuracy=float(right.float().mean()))
    t.learned(right.float().mean() > 0.92)


@fifth.healthy
def effect_of_a_treatment(t: Training) -> None:
    """Two heads on a shared body, each sees those who were treated or not; TARNet 2017.

    Learned: the difference of the heads follows the true effect.
    """
    data = torch.Generator().manual_seed(12)
    x = torch.randn(2000, 6, generator=data)
    treated = (torch.rand(2000, generator=data) < x[:, 0].sigmoid()).long()
    effect = 1 + x[:, 1] * 1.5
    y = x[:, 0] + x[:, 2].sin() + treated * effect
    y = y + 0.3 * torch.randn(2000, generator=data)
    body, heads = nn.Sequential(mlp((6, 48, 48)), nn.ReLU()), mlp((48, 32, 2))
    model, criterion = nn.Sequential(body, heads), nn.MSELoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1500, 64)
        both = model(x[rows])
        return criterion(both.gather(1, treated[rows, None])[:, 0], y[rows])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        none, some = model(x[1500:]).T
    left = float(((some - none - effect[1500:]) ** 2).mean() / effect.var())
    t.note(unexplained=left)
    t.learned(left < 0.35)
