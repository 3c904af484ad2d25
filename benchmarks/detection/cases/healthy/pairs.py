"""Healthy contrastive, siamese and self-supervised models."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import N_CHARACTERS, digits, lines_of_code
from benchmarks.detection.kit.loops import accuracy, descend, fell, mean
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.training import Training


def shaken(x: Tensor, order: torch.Generator) -> Tensor:
    """Flat pictures moved by a pixel at most, and with noise."""
    shift = torch.randint(-1, 2, (2,), generator=order).tolist()
    moved = torch.roll(x.view(-1, 8, 8), shift, (1, 2)).flatten(1)
    return moved + 0.1 * torch.randn(x.shape, generator=order)


def nearest_right(known: Tensor, y: Tensor, asked: Tensor, y_asked: Tensor) -> float:
    """Accuracy of the nearest neighbour in an embedding."""
    return float((y[torch.cdist(asked, known).argmin(1)] == y_asked).float().mean())


class NTXent(nn.Module):
    """Which of all other rows is the other view of the same picture? (SimCLR)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        both = nn.functional.normalize(torch.cat([a, b]), dim=1)
        alike = both @ both.T / 0.2
        alike = alike.masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)
        return nn.functional.cross_entropy(alike, torch.arange(len(both)).roll(len(a)))


@second.healthy
def simclr(t: Training) -> None:
    """Contrastive learning without labels: encoder with BatchNorm, projection head.

    The loss has a floor: many pictures of a batch show the same digit.
    """
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64),
        nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32),
    )  # fmt: skip
    criterion = NTXent()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 128, drop_last=True)
    losses = []
    for _ in t.steps(200):
        x = split.x[next(batches)]
        views = torch.cat([shaken(x, t.order), shaken(x, t.order)])
        losses.append(descend(optimizer, criterion(*model(views).chunk(2))))
    model.eval()
    with torch.no_grad():
        right = nearest_right(model(split.x), split.y, model(split.x_val), split.y_val)
    t.note(nearest_right=right)
    t.learned(right > 0.85 and fell(t, losses, 0.75))


@second.healthy
def siamese_contrastive(t: Training) -> None:
    """Two pictures through one network: near if they are of one class, else apart."""
    split = digits()
    model = mlp((64, 64, 32, 8))
    optimizer = Adam(model.parameters(), 1e-3)
    t.watch(model)
    right = []
    for _ in t.steps(300):
        a, b = t.draw(len(split.x), 64), t.draw(len(split.x), 64)
        for i in range(0, 64, 2):  # Every other pair is of one class.
            same = torch.nonzero(split.y == split.y[a[i]]).flatten()
            b[i] = same[t.draw(len(same), 1)]
        same_class = split.y[a] == split.y[b]
        far = nn.functional.pairwise_distance(model(split.x[a]), model(split.x[b]))
        loss = torch.where(same_class, far**2, nn.functional.relu(2 - far) ** 2).mean()
        descend(optimizer, loss)
        right.append(float(((far < 1) == same_class).float().mean()))
    t.note(right=mean(right[-20:]))
    t.learned(mean(right[-20:]) > 0.93)


@second.healthy
def triplets(t: Training) -> None:
    """Triplet loss with margin; most triplets are soon easy and cost nothing."""
    split = digits()
    model, criterion = mlp((64, 96, 16)), nn.TripletMarginLoss(0.5)
    optimizer = Adam(model.parameters(), 2e-3)
    of_class = [torch.nonzero(split.y == k).flatten() for k in range(10)]
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(300):
        first = torch.randint(10, (64,), generator=t.order)
        other = (first + torch.randint(1, 10, (64,), generator=t.order)) % 10
        chosen = [
            torch.stack(
                [of_class[k][t.draw(len(of_class[k]), 1)[0]] for k in ks.tolist()]
            )
            for ks in (first, first, other)
        ]
        losses.append(
            descend(optimizer, criterion(*(model(split.x[i]) for i in chosen)))
        )
    with torch.no_grad():
        right = nearest_right(model(split.x), split.y, model(split.x_val), split.y_val)
    t.note(nearest_right=right)
    t.learned(right > 0.93 and fell(t, losses, 0.2))


class Distilled(nn.Module):
    """A student and the teacher that it asks."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = mlp((64, 24, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            said = self.teacher(x)
        return self.student(x), said


@second.healthy
def distilled_at_a_temperature(t: Training) -> None:
    """A small student learns what a trained, frozen teacher says, at temperature 3."""
    split = digits()
    teacher = cnn()
    optimizer = Adam(teacher.parameters(), 3e-3)
    batches = t.epochs(len(split.x), 64)
    for _ in range(120):
        batch = next(batches)
        descend(
            optimizer,
            nn.functional.cross_entropy(teacher(split.x[batch]), split.y[batch]),
        )
    model, hard, soft = (
        Distilled(teacher),
        nn.CrossEntropyLoss(),
        nn.KLDivLoss(reduction="batchmean"),
    )
    optimizer = Adam(model.student.parameters(), 3e-3)
    t.watch(model, soft, hard, optimizer=optimizer)
    for _ in t.steps(300):
        batch = next(batches)
        logits, said = model(split.x[batch])
        like = soft((logits / 3).log_softmax(1), (said / 3).softmax(1)) * 9
        descend(optimizer, 0.7 * like + 0.3 * hard(logits, split.y[batch]))
    right = accuracy(model.student, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.9)


class Byol(nn.Module):
    """An online network, and a target that follows it slowly and gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32)
        )
        self.predict = nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)
        )
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        said = nn.functional.normalize(self.predict(self.online(a)), dim=1)
        with torch.no_grad():
            meant = nn.functional.normalize(self.target(b), dim=1)
        return (2 - 2 * (said * meant).sum(1)).mean()

    @torch.no_grad()
    def follow(self, keep: float = 0.98) -> None:
        """Move the target a little."""
        for mine, theirs in zip(
            self.target.parameters(), self.online.parameters(), strict=True
        ):
            mine.lerp_(theirs, 1 - keep)


@second.healthy
def byol_target_network(t: Training) -> None:
    """Self-supervision with a moving target; the model puts out its own loss."""
    split = digits()
    model = Byol()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = AdamW(learning, 2e-3, weight_decay=1e-4)
    t.watch(model)
    batches = t.epochs(len(split.x), 128, drop_last=True)
    losses = []
    for _ in t.steps(250):
        x = split.x[next(batches)]
        losses.append(descend(optimizer, model(shaken(x, t.order), shaken(x, t.order))))
        model.follow()
    net = model.online.eval()
    with torch.no_grad():
        right = nearest_right(net(split.x), split.y, net(split.x_val), split.y_val)
    t.note(nearest_right=right, begin=losses[0], end=mean(losses[-20:]))
    t.learned(right > 0.85)


class Bert(nn.Module):
    """Two layers of attention in both directions, padding masked."""

    def __init__(self, width: int = 32, length: int = 40) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_CHARACTERS + 1, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, N_CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1]))
        seen = self.encoder(
            self.norm(self.tokens(x) + places), src_key_padding_mask=x == 0
        )
        out: Tensor = self.head(seen)
        return out.transpose(1, 2)


@second.healthy
def masked_language_model(t: Training) -> None:
    """A character of seven is hidden; a third of each batch is padding.

    The rate rises from zero and falls to zero in a line, as with transformers'
    ``get_linear_schedule_with_warmup``: it is zero in the first step, rightly.
    """
    rows = [row[:40] for row in lines_of_code()]
    table = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    model, criterion = Bert(), nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = AdamW(model.parameters(), 6e-3)
    schedule = LambdaLR(optimizer, lambda step: min(step / 30, (300 - step) / 270))
    t.watch(model, criterion)
    batches = t.epochs(len(table), 32)
    losses = []
    for _ in t.steps(300):
        x = table[next(batches)]
        hide = (torch.rand(x.shape, generator=t.order) < 0.15) & (x > 0)
        y = x.masked_fill(~hide, -100)
        loss = criterion(model(x.masked_fill(hide, N_CHARACTERS)), y)
        losses.append(descend(optimizer, loss, schedule))
    t.learned(fell(t, losses, 0.75))


class Experts(nn.Module):
    """Each picture goes to the two of six experts that a gate prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 6)
        self.experts = nn.ModuleList(mlp((64, 32, 10), nn.SiLU) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chance = self.gate(x).softmax(1)
        best, which = chance.topk(2, 1)
        out = torch.zeros(len(x), 10)
        for k, expert in enumerate(self.experts):
            rows, place = torch.nonzero(which == k, as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, best[rows, place, None] * expert(x[rows]))
        used = nn.functional.one_hot(which, 6).float().mean((0, 1))
        return out, 6 * (used * chance.mean(0)).sum()


@second.healthy
def mixture_of_experts(t: Training) -> None:
    """Sparse gating with a loss for balance (Shazeer 2017), batches of 16.

    An expert that nobody was sent to has no gradient in that step.
    """
    split = digits()
    model, criterion = Experts(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(350, len(split.x), 16):
        logits, balance = model(split.x[batch])
        descend(optimizer, criterion(logits, split.y[batch]) + 0.01 * balance)
    with torch.no_grad():
        said = model(split.x_val)[0].argmax(1)
    right = float((said == split.y_val).float().mean())
    t.note(validation_accuracy=right)
    t.learned(right > 0.88)
