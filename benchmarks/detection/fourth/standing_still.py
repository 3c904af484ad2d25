"""Parameters that get no gradient, no rate, no optimizer, or the same thing again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import N_CHARACTERS, breast_cancer, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import below_accuracy
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import characters as rows_of
from benchmarks.detection.fourth.material import flowers, halved, kinds_of_lines
from benchmarks.detection.third.views import constantly, epoch, mean, since, train


class Sharpened(nn.Module):
    """Images are sharpened by learned filters, scaled by hand, and classified."""

    def __init__(self, *, by_numpy: bool) -> None:
        super().__init__()
        self.by_numpy = by_numpy
        self.filters = nn.Conv2d(1, 6, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(6, 12, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(12 * 36, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.filters(images.view(-1, 1, 8, 8))
        if self.by_numpy:
            array = x.detach().numpy()
            x = torch.from_numpy(array / (1 + abs(array).max((1, 2, 3), keepdims=True)))
        else:
            x = x / (1 + x.abs().amax((1, 2, 3), keepdim=True))
        out: Tensor = self.head(self.body(x))
        return out


@sick(
    named_by={"MissingGradient", "UnchangedTensor"},
    diagnosis="x.detach().numpy() in forward: nothing before it gets a gradient",
)
def through_numpy_and_back(t: Training) -> None:
    """An operation is done by NumPy; the error message is silenced by detach().

    Source: "Can't call numpy() on Tensor that requires grad. Use detach()" and what
    people do then.  Visible: after 20 steps the first filters are what they were.
    """
    model = Sharpened(by_numpy=t.sick)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=150,
        batch_size=32,
        visible=constantly(["filters.weight"], 20),
        learned=0.85,
    )


class TwoAnswers(nn.Module):
    """Which digit it is, and how much ink there is."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp([64, 64, 48], nn.SiLU)
        self.digit = nn.Linear(48, 10)
        self.ink = nn.Linear(48, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(images).relu()
        return self.digit(x), self.ink(x)


@sick(
    named_by={"MissingGradient", "UnchangedTensor"},
    diagnosis="a term of the loss is added as .item(): a number has no gradient",
)
def term_added_as_a_number(t: Training) -> None:
    """Loss = classes + 0.5 * ink.item(), to save memory as in the advice on logging.

    Source: PyTorch's FAQ on accumulating history ("use .item()"), in the wrong place.
    Visible: after 20 steps the second head is what it was.
    """
    split = digits()
    model = TwoAnswers()
    classes, ink = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classes, ink)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    began = model.ink.weight.detach().clone()
    of_ink: list[float] = []

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 48)
        digit, said = model(split.x[chosen])
        second = ink(said, split.x[chosen].sum(1, keepdim=True) / 20)
        of_ink.append(float(second.detach()))
        added = second.item() if t.sick else second
        loss: Tensor = classes(digit, split.y[chosen]) + 0.5 * added
        return loss

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=180,
        visible=lambda losses: (
            len(losses) >= 20 and torch.equal(began, model.ink.weight.detach())
        ),
    )
    t.learned(mean(losses[-20:]) < 0.5 and mean(of_ink[-20:]) < 0.05)


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="the group without weight decay was made, and not given",
)
def group_without_decay_forgotten(t: Training) -> None:
    """Biases and norms are taken out of the group that decays, and put nowhere.

    Source: the two groups of every BERT script; minGPT asserts that none is left out.
    Visible: after 30 steps all biases and norms are what they were.
    """
    rows = torch.cat([rows_of(kind[:300], 32) for kind in kinds_of_lines()])
    split = halved(rows, torch.arange(4).repeat_interleave(300))
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(N_CHARACTERS, 32),
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        nn.LayerNorm(32),
        Mean(),
        nn.Linear(32, 4),
    )
    matrices = [q for q in model.parameters() if q.dim() > 1]
    rest = [q for q in model.parameters() if q.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}]
    if not t.sick:
        groups.append({"params": rest, "weight_decay": 0.0})
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(groups, 3e-3),
        n_steps=150,
        batch_size=32,
        visible=constantly(
            [name for name, q in model.named_parameters() if q.dim() < 2], 30
        ),
        learned=0.85,
    )


class Mean(nn.Module):
    """Over the places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Angular(nn.Module):
    """A loss with a direction for each class, that are to be learned as well."""

    def __init__(self) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(10, 24))
        self.entropy = nn.CrossEntropyLoss()

    def forward(self, places: Tensor, labels: Tensor) -> Tensor:
        normed = nn.functional.normalize
        cosines = normed(places) @ normed(self.directions).t()
        loss: Tensor = self.entropy(12 * cosines, labels)
        return loss


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="the loss has weights of its own, that no optimizer has",
)
def weights_of_the_loss_left_out(t: Training) -> None:
    """Adam(model.parameters()), though the loss has parameters too.

    Source: pytorch-metric-learning's FAQ, "this loss function needs an optimizer".
    Visible: after 40 steps the directions are what they were.
    """
    split = digits()
    model, criterion = mlp([64, 64, 24], nn.PReLU), Angular()
    t.watch(model, criterion)
    learned = [*model.parameters(), *(() if t.sick else criterion.parameters())]
    began = criterion.directions.detach().clone()

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        return loss

    losses = train(
        t,
        loss_of,
        torch.optim.Adam(learned, 2e-3),
        n_steps=150,
        visible=lambda losses: (
            len(losses) >= 40 and torch.equal(began, criterion.directions.detach())
        ),
    )
    t.learned(mean(losses[-20:]) < 0.5)


@sick(
    named_by={"ZeroLearningRate", "UnchangedTensor", "LossNotDecreasing"},
    diagnosis="warm-up counted in epochs: the whole first epoch has a rate of zero",
)
def warm_up_by_epochs(t: Training) -> None:
    """LambdaLR(lambda epoch: epoch / 5), stepped once an epoch, begins with 0 / 5.

    Source: the forum on warm-up with LambdaLR.  Visible: for 20 steps nothing moves.
    """
    split = digits()
    model = cnn(6)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1.0, k / 5 if t.sick else (k + 1) / 5)
    )
    per_epoch = -(-len(split.x) // 32)

    def at_the_end_of_an_epoch(step: int) -> None:
        if step % per_epoch == per_epoch - 1:
            schedule.step()

    order = epoch(t, len(split.x), 32)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = next(order)
        return split.x[chosen], split.y[chosen]

    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=3 * per_epoch,
        batches=batches,
        before_step=at_the_end_of_an_epoch,
        visible=constantly([name for name, _ in model.named_parameters()], 20),
        learned=0.8,
    )


@sick(
    named_by={"ZeroLearningRate", "UnchangedTensor", "LossNotDecreasing"},
    diagnosis="the schedule was restored too, and it had ended",
)
def resumed_at_the_end_of_the_schedule(t: Training) -> None:
    """scheduler.load_state_dict for a second training: its cosine is over, at zero.

    Source: questions on resuming that continue with a rate of 0; Hugging Face's
    resume_from_checkpoint with the same num_train_epochs.  Visible: for 20 steps
    nothing moves.
    """
    model = mlp([13, 32, 3], nn.ELU)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    total = 400
    done = total if t.sick else 0
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: max(0.0, 1 - (k + done) / total)
    )
    fit(
        t,
        model,
        wine(),
        optimizer,
        n_steps=180,
        batch_size=16,
        schedule=schedule,
        validate_every=45,
        visible=constantly([name for name, _ in model.named_parameters()], 20),
        learned=0.95,
    )


class OwnDescent(torch.optim.Optimizer):
    """Gradient descent as somebody writes it for the first time."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, *, in_place: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self._in_place = in_place

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for q in group["params"]:
                if self._in_place:
                    q.sub_(group["lr"] * q.grad)
                else:
                    q = q - group["lr"] * q.grad  # noqa: PLW2901


@sick(
    named_by={"UnchangedTensor", "WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="p = p - lr * p.grad: only the name is given to something new",
)
def own_optimizer_rebinds_the_name(t: Training) -> None:
    """Gradient descent by hand, whose result is thrown away.

    Source: Stack Overflow on updating weights by hand in PyTorch.  Visible: for 20
    steps nothing moves.
    """
    model = mlp([30, 24, 2], nn.ReLU)
    fit(
        t,
        model,
        breast_cancer(),
        OwnDescent(model.parameters(), 0.2, in_place=not t.sick),
        n_steps=150,
        batch_size=32,
        visible=constantly([name for name, _ in model.named_parameters()], 20),
        learned=0.95,
    )


@sick(
    named_by={"UnchangedTensor", "Overfit", "ClassImbalance"},
    diagnosis="torch.manual_seed(0) in the loop: each batch is the same",
)
def seeded_in_the_loop(t: Training) -> None:
    """The seed is set where the step begins, so that "all is reproducible".

    Source: questions on randperm and dropout that repeat.  Visible: for 30 steps the
    batch is the same, and 15 % or more of all irises is not recognized.
    """
    split = flowers()
    before: list[Tensor] = []
    same = 0

    def drawn() -> Iterator[Tensor]:
        while True:
            if t.sick:
                t.order.manual_seed(t.seed)
            yield torch.randint(len(split.x), (6,), generator=t.order)

    order = drawn()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        nonlocal same
        chosen = next(order)
        same = same + 1 if before and torch.equal(before[-1], chosen) else 0
        before.append(chosen)
        return split.x[chosen], split.y[chosen]

    missed = below_accuracy(0.85, since=0)

    def holds(p: Probe) -> bool:
        return missed(p) and same >= 30

    model = mlp([4, 24, 3])
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-2),
        n_steps=200,
        batches=batches,
        validate_every=20,
        visible=since(30, holds),
        learned=0.9,
    )
