"""Healthy trainings by preferences, strips, codes and splines."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import eighth
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import descend, fell, mean, pretrain, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Speaker(nn.Module):
    """Says a row of tokens, one after the other, by a GRU."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.tokens, self.cell = (
            nn.Embedding(n + 1, 32),
            nn.GRU(32, 48, batch_first=True),
        )
        self.head = nn.Linear(48, n)
        self.begin = n

    def forward(self, x: Tensor) -> Tensor:
        """Log chances of each token, given those before it."""
        before = functional.pad(x[:, :-1], (1, 0), value=self.begin)
        out: Tensor = self.head(self.cell(self.tokens(before))[0])
        return out.log_softmax(2)

    def says(self, n_rows: int, length: int, order: torch.Generator) -> Tensor:
        """Draw rows."""
        x = torch.zeros(n_rows, length, dtype=torch.int64)
        with torch.no_grad():
            for place in range(length):
                chances = self(x)[:, place].exp()
                x[:, place] = torch.multinomial(chances, 1, generator=order)[:, 0]
        return x

    def of_rows(self, x: Tensor) -> Tensor:
        """The log chance of each row."""
        out: Tensor = self(x).gather(2, x[..., None])[..., 0].sum(1)
        return out


@eighth.healthy
def preferences_without_a_reward(t: Training) -> None:
    """DPO: of two rows the one with more rises is better; Rafailov 2023.

    The loss begins at log 2 and stays far from 0.  Learned: more rises are said.
    """
    model = Speaker()
    rises = lambda x: (x[:, 1:] > x[:, :-1]).float().sum(1)  # noqa: E731
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters(), 1e-3)
    before = float(rises(model.says(300, 6, t.order)).mean())
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        with torch.no_grad():
            a, b = reference.says(48, 6, t.order), reference.says(48, 6, t.order)
        wins = (rises(a) >= rises(b))[:, None]
        better, worse = torch.where(wins, a, b), torch.where(wins, b, a)
        margin = model.of_rows(better) - reference.of_rows(better)
        margin = margin - model.of_rows(worse) + reference.of_rows(worse)
        return -functional.logsigmoid(0.2 * margin).mean()

    train(t, loss_of, optimizer, n_steps=150)
    after = float(rises(model.says(300, 6, t.order)).mean())
    t.note(before=before, after=after)
    t.learned(after > before + 0.7)


@eighth.healthy
def answers_better_than_their_group(t: Training) -> None:
    """GRPO: rows of a group are compared with each other; Shao 2024.

    A row is right if it ends in two zeros.  Where all of a group are wrong, or all
    right, it has no gradient at all.
    """
    model = Speaker()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)
    rewards = []
    for _ in t.steps(200):
        x = model.says(64, 4, t.order)
        reward = ((x[:, -1] == 0) & (x[:, -2] == 0)).float().view(8, 8)
        rewards.append(float(reward.mean()))
        spread = reward.std(1, keepdim=True) + 1e-4
        advantage = ((reward - reward.mean(1, keepdim=True)) / spread).flatten()
        descend(optimizer, -(advantage * model.of_rows(x)).mean())
    t.note(begin=mean(rewards[:10]), end=mean(rewards[-10:]))
    t.learned(mean(rewards[-10:]) > 0.5)


@eighth.healthy
def digits_read_from_a_strip(t: Training) -> None:
    """CTC: four digits side by side, and no word of where they are; Graves 2006."""
    split = digits()

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.columns, self.gru = (
                nn.Linear(8 * 5, 64),
                nn.GRU(64, 48, batch_first=True, bidirectional=True),
            )
            self.head = nn.Linear(96, 11)

        def forward(self, x: Tensor) -> Tensor:
            wide = (
                functional.pad(x, (2, 2)).unfold(2, 5, 2).permute(0, 2, 1, 3).flatten(2)
            )
            h = self.gru(torch.relu(self.columns(wide)))[0]
            return self.head(h).log_softmax(2).transpose(0, 1)

    model, criterion = Reader(), nn.CTCLoss(blank=10)
    optimizer = Adam(model.parameters(), 4e-3)
    t.watch(model, criterion)

    def strip(size: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(split.x), (size, 4), generator=t.order)
        x = split.x[rows].view(size, 4, 8, 8).permute(0, 2, 1, 3).flatten(2)
        return x, split.y[rows]

    def loss_of(_: int) -> Tensor:
        x, y = strip(32)
        said = model(x)
        n, of_y = torch.full((32,), len(said)), torch.full((32,), 4)
        out: Tensor = criterion(said, y, n, of_y)
        return out

    losses = train(t, loss_of, optimizer, n_steps=300)
    t.learned(fell(t, losses, 0.25))


@eighth.healthy
def codes_of_one_in_many(t: Training) -> None:
    """Six codes of one in ten each, by straight-through Gumbel softmax; Jang 2017.

    The temperature falls as it learns, so the gradients scatter more and more.
    """
    split = digits()
    encoder, decoder = mlp((64, 96, 60)), mlp((60, 96, 64))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)

    def loss_of(step: int) -> Tensor:
        x = split.x[t.draw(len(split.x), 64)]
        heat = max(0.5, 1.5 * 0.995**step)
        code = functional.gumbel_softmax(encoder(x).view(-1, 6, 10), heat, hard=True)
        again = decoder(code.flatten(1))
        return functional.binary_cross_entropy_with_logits(again, x)

    losses = train(t, loss_of, optimizer, n_steps=350)
    t.learned(fell(t, losses, 0.65))


@eighth.healthy
def teacher_centered_and_sharpened(t: Training) -> None:
    """DINO: a student guesses what its own average says of another view; Caron 2021.

    Learned: neighbours in the embedding are of one class more often than at first.
    """
    split = digits()
    student = nn.Sequential(mlp((128, 96, 48)), nn.Linear(48, 40))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = Adam(student.parameters(), 1e-3)
    center = torch.zeros(40)
    t.watch(student)

    def view(x: Tensor) -> Tensor:
        """A picture of which a fifth is lacking, and as many pixels of noise."""
        kept = torch.rand(x.shape, generator=t.order) > 0.2
        return torch.cat((x * kept, torch.rand(x.shape, generator=t.order)), 1)

    def right() -> float:
        with torch.no_grad():
            a, b = student[0](view(split.x[:600])), student[0](view(split.x_val))
        a, b = functional.normalize(a, dim=1), functional.normalize(b, dim=1)
        return float((split.y[(b @ a.T).argmax(1)] == split.y_val).float().mean())

    before = right()
    for _ in t.steps(250):
        x = split.x[t.draw(len(split.x), 96)]
        with torch.no_grad():
            said = teacher(view(x))
            aim = ((said - center) / 0.05).softmax(1)
            center.lerp_(said.mean(0), 0.1)
        loss = -(aim * (student(view(x)) / 0.1).log_softmax(1)).sum(1).mean()
        descend(optimizer, loss)
        with torch.no_grad():
            both = zip(teacher.parameters(), student.parameters(), strict=True)
            for mine, theirs in both:
                mine.lerp_(theirs, 0.02)
    after = right()
    t.note(before=before, after=after)
    t.learned(after > before + 0.1)


@eighth.healthy
def exits_on_the_way(t: Training) -> None:
    """Three exits of their own, whose losses are added; Teerapittayanon 2016."""
    split = digits()
    blocks = nn.ModuleList(mlp((a, 64, 48)) for a in (64, 48, 48))
    heads = nn.ModuleList(nn.Linear(48, 10) for _ in range(3))
    model = nn.ModuleDict({"blocks": blocks, "heads": heads})
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    t.watch(model, criterion)

    def said(x: Tensor) -> list[Tensor]:
        out = []
        for block, head in zip(blocks, heads, strict=True):
            x = torch.relu(block(x))
            out.append(head(x))
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        each = [criterion(one, split.y[rows]) for one in said(split.x[rows])]
        return torch.stack(each).mul(torch.tensor([0.3, 0.3, 1.0])).sum()

    train(t, loss_of, optimizer, n_steps=350)
    with torch.no_grad():
        at_exits = [
            (one.argmax(1) == split.y_val).float().mean() for one in said(split.x_val)
        ]
    t.note(**{f"exit_{k}": float(each) for k, each in enumerate(at_exits)})
    t.learned(min(at_exits) > 0.85)


@eighth.healthy
def splines_on_edges(t: Training) -> None:
    """A Kolmogorov-Arnold network: a spline on each edge; Liu 2024.

    Most of a spline's coefficients get no gradient from one batch of few rows.
    """
    x = torch.rand(1200, 4, generator=t.order) * 2 - 1
    y = torch.exp(0.5 * (torch.sin(3 * x[:, :2]).sum(1) + (x[:, 2:] ** 2).sum(1)))
    y = ((y - y.mean()) / y.std())[:, None]

    class Edges(nn.Module):
        def __init__(self, n_in: int, n_out: int) -> None:
            super().__init__()
            self.register_buffer("knots", torch.linspace(-1.5, 1.5, 12))
            self.base = nn.Linear(n_in, n_out)
            self.spline = nn.Parameter(0.05 * torch.randn(n_out, n_in, 12))

        def forward(self, x: Tensor) -> Tensor:
            hats = torch.relu(1 - (x[..., None] - self.knots).abs() / 0.2727)
            out: Tensor = self.base(functional.silu(x))
            return out + torch.einsum("bik,oik->bo", hats, self.spline)

    model, criterion = nn.Sequential(Edges(4, 6), Edges(6, 1)), nn.MSELoss()
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1000, 64)
        out: Tensor = criterion(model(x[rows]), y[rows])
        return out

    train(t, loss_of, optimizer, n_steps=300)
    with torch.no_grad():
        left = float(functional.mse_loss(model(x[1000:]), y[1000:]))
    t.note(left=left)
    t.learned(left < 0.1)


@eighth.healthy
def functions_from_few_points(t: Training) -> None:
    """A conditional neural process: a sine from 3 to 10 of its points; Garnelo 2018.

    Each batch has another number of points, and the likelihood may be negative.
    """
    encoder, decoder = mlp((2, 64, 64)), mlp((65, 64, 2))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model)
    errors = []

    def loss_of(_: int) -> Tensor:
        n = int(torch.randint(3, 11, (), generator=t.order))
        x = torch.rand(32, n + 20, 1, generator=t.order) * 4 - 2
        height, phase = torch.rand(2, 32, 1, 1, generator=t.order)
        y = (0.5 + height) * torch.sin(2 * x + 3 * phase)
        known = encoder(torch.cat((x[:, :n], y[:, :n]), 2)).mean(1, keepdim=True)
        wide = known.expand(-1, n + 20, -1)
        middle, width = decoder(torch.cat((wide, x), 2)).chunk(2, 2)
        spread = 0.05 + 0.95 * functional.softplus(width)
        errors.append(float((middle - y).square().mean().detach()))
        return -torch.distributions.Normal(middle, spread).log_prob(y).mean()

    train(t, loss_of, optimizer, n_steps=400)
    t.learned(fell(t, errors, 0.3))


@eighth.healthy
def claims_that_are_mostly_none(t: Training) -> None:
    """Tweedie deviance of power 1.5: nine of ten targets are zero; Jorgensen 1994.

    Learned: the sum of those called risky is far above that of the others.
    """
    x = torch.randn(3000, 6, generator=t.order)
    rate = torch.exp(-2.3 + 0.8 * x[:, 0] - 0.6 * x[:, 1])
    n = torch.poisson(rate, generator=t.order)
    y = n * torch.exp(0.4 * x[:, 2])
    model = mlp((6, 32, 1))
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(2400, 128)
        said = model(x[rows])[:, 0]
        return (2 * y[rows] * (-0.5 * said).exp() + 2 * (0.5 * said).exp()).mean()

    losses = train(t, loss_of, optimizer, n_steps=400)
    with torch.no_grad():
        said = model(x[2400:])[:, 0]
    risky = said > said.median()
    ratio = float(y[2400:][risky].mean() / y[2400:][~risky].mean())
    t.note(ratio=ratio, begin=mean(losses[:10]), end=mean(losses[-10:]))
    t.learned(ratio > 2.5)


@eighth.healthy
def biases_alone(t: Training) -> None:
    """BitFit: of a network that knows the digits only biases and the head go on.

    Zaken 2022; the pictures are turned by a quarter now.
    """
    split = digits()
    turned = split.inputs(lambda x: x.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1))
    model, criterion = mlp((64, 128, 128, 10)), nn.CrossEntropyLoss()
    pretrain(model, split, 200)
    for name, each in model.named_parameters():
        each.requires_grad_("bias" in name or name.startswith("4."))
    optimizer = Adam((each for each in model.parameters() if each.requires_grad), 5e-3)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        out: Tensor = criterion(model(turned.x[rows]), turned.y[rows])
        return out

    losses = train(t, loss_of, optimizer, n_steps=300)
    t.learned(fell(t, losses, 0.2))


@eighth.healthy
def draws_by_noisy_descent(t: Training) -> None:
    """Stochastic gradient Langevin dynamics: noise is added to each step; Welling 2011.

    Two half circles are told apart; the mean of many networks answers.
    """
    x, y = make_moons(1500, noise=0.1, random_state=0)
    points = torch.tensor(x, dtype=torch.float32)
    upper = torch.tensor(y, dtype=torch.float32)[:, None]
    model, criterion = mlp((2, 32, 1)), nn.BCEWithLogitsLoss()
    optimizer = SGD(model.parameters(), 0.2)
    t.watch(model, criterion)
    said = torch.zeros(len(points), 1)
    for step in t.steps(500):
        rows = t.draw(len(points), 64)
        descend(optimizer, criterion(model(points[rows]), upper[rows]))
        with torch.no_grad():
            for each in model.parameters():
                each.add_(0.01 * torch.randn(each.shape, generator=t.order))
            if step >= 300 and step % 10 == 9:
                said += model(points).sigmoid() / 20
    right = float(((said > 0.5) == (upper > 0.5)).float().mean())
    t.note(right=right)
    t.learned(right > 0.93)
