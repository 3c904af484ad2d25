"""Losses that fall, and do not mean what their author means."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import diabetes, digits
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import Loop, adam, descend, pretrain
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Loss(nn.Module):
    """A loss that is written as a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)


def taught(
    t: Training, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, float]:
    """Distil a trained network by a loss of logits; accuracy, and the last loss."""
    split = digits()
    teacher = mlp([64, 128, 10])
    pretrain(teacher, split, 250)
    teacher.eval().requires_grad_(False)
    student = mlp([64, 32, 10])
    optimizer = SGD(student.parameters(), 0.2, 0.9)
    t.watch(student)
    last = 0.0
    for _, rows in t.batches(150, len(split.x), 32):
        last = descend(optimizer, loss(student(split.x[rows]), teacher(split.x[rows])))
    return held_out(student, split.x_val, split.y_val), last


@sixth.silent(
    "distillation loss", "KLDivLoss is given probabilities, not their logarithms"
)
def divergence_of_probabilities(t: Training) -> None:
    """``KLDivLoss()(softmax(student), softmax(teacher))``.

    Source: the documentation of KLDivLoss (the input is in log-space), and forum
    threads on a divergence that is negative.
    Visible: the loss falls below zero, and the student knows fewer than 85 %.
    """

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        given = student.softmax(1) if t.sick else student.log_softmax(1)
        return functional.kl_div(given, teacher.softmax(1), reduction="batchmean")

    accuracy, last = taught(t, loss)
    t.note(accuracy=accuracy, last=last)
    conclude(t, fault=last < -0.01, reached=accuracy > 0.85, harms=False)


@sixth.silent(
    "distillation loss", "KLDivLoss with its default: a mean over classes, too"
)
def divergence_of_all_elements(t: Training) -> None:
    """The default reduction divides by rows and classes: the term weighs a tenth.

    Source: the warning in the documentation of KLDivLoss: reduction="mean" does not
    return the true divergence.
    Visible: the loss is a tenth of the divergence, as measured by hand.
    """
    split = digits()
    teacher = mlp([64, 128, 10])
    pretrain(teacher, split, 250)
    teacher.eval().requires_grad_(False)
    student = mlp([64, 32, 10])
    criterion = nn.KLDivLoss(reduction="mean" if t.sick else "batchmean")
    optimizer = SGD(student.parameters(), 0.03, 0.9)
    t.watch(student, criterion)
    share = 1.0
    for _, rows in t.batches(180, len(split.x), 32):
        logits, wanted = student(split.x[rows]), teacher(split.x[rows])
        loss = criterion(logits.log_softmax(1), wanted.softmax(1))
        with torch.no_grad():
            p = wanted.softmax(1)
            true = (p * (p.log() - logits.log_softmax(1))).sum(1).mean()
        share = float(loss.detach() / true)
        descend(optimizer, loss)
    accuracy = held_out(student, split.x_val, split.y_val)
    t.note(accuracy=accuracy, share=share)
    conclude(t, fault=share < 0.2, reached=accuracy > 0.87)


def few_of_a_class() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Is it an eight?  Of 35 rows one is, in training; all that there are to test."""
    split = digits()
    eight = (split.y == 8).nonzero().flatten()[:20]
    other = (split.y != 8).nonzero().flatten()[:700]
    rows = torch.cat((eight, other))
    luck = torch.Generator().manual_seed(0)
    x = split.x[rows] + 0.35 * torch.randn(len(rows), 64, generator=luck)
    x_val = split.x_val + 0.35 * torch.randn(split.x_val.shape, generator=luck)
    return x, (split.y[rows] == 8).long(), x_val, (split.y_val == 8).long()


@sixth.silent("loss of a mean", "the focal factor is taken of the mean of the batch")
def focal_factor_of_the_mean(t: Training) -> None:
    """``F.cross_entropy`` averages first: all samples get one factor.

    Source: github.com/kaidic/LDAM-DRW/issues/6, github.com/ZhaoJ9014/face.evoLVe/
    issues/180, github.com/gokulprasadthekkel/pytorch-multi-class-focal-loss/issues/1.
    Visible: the gradient of each logit is that of cross-entropy times one number.
    """
    x, y, x_val, y_val = few_of_a_class()

    def focal(logits: Tensor, labels: Tensor) -> Tensor:
        reduction = "mean" if t.sick else "none"
        entropy = functional.cross_entropy(logits, labels, reduction=reduction)
        return ((1 - (-entropy).exp()) ** 2 * entropy).mean()

    model = mlp([64, 32, 2])
    criterion = Loss(focal)
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(250, len(x), 36):
        descend(optimizer, criterion(model(x[rows]), y[rows]))
    logits = model(x[:64]).detach().requires_grad_()
    (ours,) = torch.autograd.grad(focal(logits, y[:64]), logits)
    (plain,) = torch.autograd.grad(functional.cross_entropy(logits, y[:64]), logits)
    factors = (ours / plain)[:, 0]
    uniform = bool((factors.max() - factors.min()).abs() < 1e-4 * factors.abs().max())
    accuracy = held_out(model, x_val, y_val)
    t.note(accuracy=accuracy, spread=float(factors.std()))
    conclude(t, fault=uniform, reached=accuracy > 0.88, harms=False)


@sixth.silent("class weights", "weights of classes are their counts, not the inverse")
def weights_are_counts(t: Training) -> None:
    """``CrossEntropyLoss(weight=counts / counts.sum())``.

    Source: forum threads on the weights of nn.CrossEntropyLoss ("should they be the
    counts or the inverse?").
    Visible: the frequent class has the larger weight, and of the rare one fewer than
    40 % are found.
    """
    x, y, x_val, y_val = few_of_a_class()
    counts = torch.bincount(y).float()
    weight = counts / counts.sum() if t.sick else counts.sum() / counts / 2
    criterion = nn.CrossEntropyLoss(weight=weight)
    model = mlp([64, 32, 2])
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(x), 36):
        descend(optimizer, criterion(model(x[rows]), y[rows]))
    told = in_evaluation(model, lambda: model(x_val).argmax(1))
    found = float((told[y_val == 1] == 1).float().mean())
    t.note(found=found)
    conclude(t, fault=weight[0] > weight[1], reached=found > 0.4)


class Encoded(nn.Module):
    """A variational autoencoder; what it says of the spread may be read wrongly."""

    def __init__(self, *, as_variance: bool) -> None:
        super().__init__()
        self.encoder = mlp([64, 48, 16])
        self.decoder = mlp([8, 48, 64])
        self.as_variance = as_variance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        scale = log_variance if self.as_variance else (log_variance / 2).exp()
        code = mean + scale * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From the standard normal, of a row."""
    return -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)


@sixth.silent("variance for deviation", "the log-variance is used as the deviation")
def log_variance_as_deviation(t: Training) -> None:
    """``z = mu + logvar * eps``: the reparametrization lacks exp and the half.

    Source: discuss.pytorch.org/t/vae-example-reparametrize/35843 and
    stats.stackexchange.com/questions/486158: std = exp(0.5 * logvar).
    Visible: the deviation that is sampled is not the root of the variance that the
    divergence is taken of, and drawing as the divergence says, pictures are worse.
    """
    split = digits()
    model = Encoded(as_variance=t.sick)
    optimizer = Adam(model.parameters(), 4e-3)
    t.watch(model)
    for _, rows in t.batches(300, len(split.x), 64):
        x = split.x[rows]
        drawn, mean, log_variance = model(x)
        error = ((drawn - x) ** 2).sum(1)
        descend(optimizer, (error + 0.05 * divergence(mean, log_variance)).mean())
    with torch.no_grad():
        mean, log_variance = model.encoder(split.x_val).chunk(2, 1)
        scale = (log_variance / 2).exp()
        used = log_variance if t.sick else scale
        code = mean + scale * torch.randn_like(mean)
        error = float(((model.decoder(code) - split.x_val) ** 2).sum(1).mean())
    off = float((used.abs() - scale).abs().mean())
    t.note(error=error, off=off)
    conclude(t, fault=off > 0.05, reached=error < 3.0)


@sixth.silent("meaning of the loss", "the pinball loss is mirrored: the 10 % quantile")
def pinball_is_mirrored(t: Training) -> None:
    """``max(q * -error, (1 - q) * error)``: prediction and target are exchanged.

    Source: forum threads on hand-written quantile losses: the error is target minus
    prediction.
    Visible: what should lie above 90 % of the targets lies above fewer than 30 %.
    """
    split = diabetes()

    def pinball(predicted: Tensor, target: Tensor) -> Tensor:
        error = predicted - target if t.sick else target - predicted
        return torch.maximum(0.9 * error, -0.1 * error).mean()

    model = mlp([10, 32, 1])
    Loop(t, model, split, adam(5e-3), Loss(pinball), validate_every=50).run(200)
    predicted = in_evaluation(model, lambda: model(split.x_val))
    above = float((predicted >= split.y_val).float().mean())
    t.note(above=above)
    conclude(t, fault=above < 0.3, reached=above > 0.7)


@sixth.silent(
    "variance for deviation", "GaussianNLLLoss is given deviations as variances"
)
def deviation_for_variance(t: Training) -> None:
    """The network's output is read as a deviation, and given as ``var``.

    Source: documentation of GaussianNLLLoss ("var"), and threads that ask why
    predicted intervals are too narrow or too wide.
    Visible: of unseen targets that should lie within one deviation (68 %), fewer than
    58 % or more than 78 % do.
    """
    luck = torch.Generator().manual_seed(6)
    x = torch.rand(1200, 1, generator=luck) * 4 - 2
    noise = 0.3 * torch.randn(1200, 1, generator=luck)
    y = (2 * x).sin() + noise
    model = mlp([1, 32, 2])
    criterion = nn.GaussianNLLLoss()
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model, criterion)

    def told(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = model(x).chunk(2, 1)
        return mean, functional.softplus(scale)

    for _, rows in t.batches(400, 900, 64):
        mean, deviation = told(x[rows])
        variance = deviation if t.sick else deviation**2
        descend(optimizer, criterion(mean, y[rows], variance))
    with torch.no_grad():
        mean, deviation = told(x[900:])
        inside = float(((y[900:] - mean).abs() < deviation).float().mean())
    t.note(inside=inside)
    conclude(t, fault=inside < 0.58 or inside > 0.78, reached=0.58 <= inside <= 0.78)


@sixth.silent("meaning of the loss", "mixed images keep the label of the first alone")
def mixup_forgets_a_label(t: Training) -> None:
    """Inputs are mixed, the loss is of the first label: the second is forgotten.

    Source: Zhang et al. (2018) and facebookresearch/mixup-cifar10, whose
    mixup_criterion has both labels; reimplementations that keep one.
    Visible: an image of which 80 % is a three is said to be one with less than 60 %.
    """
    split = digits()
    model = mlp([64, 64, 10])
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(700, len(split.x), 32):
        share = float(torch.rand((), generator=t.order))
        other = rows.flip(0)
        mixed = share * split.x[rows] + (1 - share) * split.x[other]
        logits = model(mixed)
        loss = criterion(logits, split.y[rows])
        if not t.sick:
            loss = share * loss + (1 - share) * criterion(logits, split.y[other])
        descend(optimizer, loss)
    x, y = split.x_val[:400], split.y_val[:400]
    apart = y != y.flip(0)
    chances = in_evaluation(model, lambda: model(0.8 * x + 0.2 * x.flip(0)).softmax(1))
    first = float(chances[torch.arange(400), y][apart].mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(first=first, accuracy=accuracy)
    conclude(t, fault=first < 0.6, reached=first > 0.64 and accuracy > 0.85)


class Painter(nn.Module):
    """Tells of each pixel of a noisy digit whether it is empty, grey or ink."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 3, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.view(-1, 1, 8, 8))


@sixth.silent("wrong axis", "view(-1, classes) of (batch, classes, height, width)")
def logits_viewed_not_permuted(t: Training) -> None:
    """``logits.view(-1, n_classes)``: scores of three pixels are those of one.

    Source: discuss.pytorch.org threads on reshaping for segmentation losses (view
    instead of permute); Karpathy's list: "you thought view() and permute() are the
    same thing".
    Visible: fewer than 80 % of unseen pixels are told rightly.
    """
    split = digits()
    levels = ((split.x > 0.2).long() + (split.x > 0.7).long()).view(-1, 8, 8)
    levels_val = ((split.x_val > 0.2).long() + (split.x_val > 0.7).long()).view(
        -1, 8, 8
    )
    model, criterion = Painter(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(160, len(split.x), 32):
        logits = model(split.x[rows] + 0.1 * torch.randn(len(rows), 64))
        flat = logits if t.sick else logits.permute(0, 2, 3, 1)
        loss = criterion(flat.reshape(-1, 3), levels[rows].flatten())
        descend(optimizer, loss)
    told = in_evaluation(model, lambda: model(split.x_val).argmax(1))
    accuracy = float((told == levels_val).float().mean())
    t.note(accuracy=accuracy)
    conclude(t, fault=accuracy < 0.7, reached=accuracy > 0.8)


@sixth.silent("wrong axis", "the loss of several outputs is a sum over the wrong axis")
def norm_over_the_batch(t: Training) -> None:
    """``functional.normalize(x, dim=0)``: each column of the batch is made of length 1.

    Source: Humbatova et al. (2020), wrong dimensions; hand-written embeddings of
    faces.
    Visible: what an image gets depends on the others in the batch; among images of its
    own kind, outputs change by more than a tenth of their spread.
    """
    split = digits()

    class Cosine(nn.Module):
        """A classifier by cosines."""

        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([64, 64, 24])
            self.classes = nn.Parameter(torch.randn(10, 24))

        def forward(self, x: Tensor) -> Tensor:
            axis = 0 if t.sick else 1
            code = functional.normalize(self.body(x), dim=axis)
            return 12 * code @ functional.normalize(self.classes, dim=1).t()

    model = Cosine()
    Loop(t, model, split, adam(3e-3), validate_every=40).run(200)
    x, y = split.x_val, split.y_val
    order = y.argsort()
    together = in_evaluation(model, lambda: model(x))[order]
    of_a_kind = [
        in_evaluation(model, lambda rows=rows: model(x[rows]))
        for rows in order.split(10)
    ]
    changed = float((torch.cat(of_a_kind) - together).abs().mean() / together.std())
    accuracy = held_out(model, x, y)
    t.note(changed=changed, accuracy=accuracy)
    conclude(t, fault=changed > 0.1, reached=accuracy > 0.9, harms=False)
