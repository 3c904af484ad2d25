"""What the model is given to learn from is not what its author thinks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, diabetes, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import every, lasting
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import epoch, far_from_training, in_order, since

N_DIGITS = 10


@sick(
    named_by={"ClassImbalance", "LossSpike", "LossNotDecreasing"},
    diagnosis="sorted data without shuffling: each batch is of one class",
)
def sorted_without_shuffling(t: Training) -> None:
    """A DataLoader without shuffle=True on a folder that is sorted by class.

    Source: PyTorch's forum; Humbatova's "wrong selection of training data".  Visible:
    for ten steps, four fifths of all images are taken for one and the same digit.
    """
    split = digits()
    split = split.take(split.y.argsort(stable=True))
    order = (in_order if t.sick else lambda n, k: epoch(t, n, k))(len(split.x), 64)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = next(order)
        return split.x[chosen], split.y[chosen]

    def one_favourite(p: Probe) -> bool:
        said = torch.bincount(p.outputs().argmax(1), minlength=N_DIGITS)
        return bool(said.max() > 0.8 * said.sum())

    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        n_steps=210,
        batches=batches,
        visible=lasting(one_favourite, 10),
        learned=0.95,
    )


@sick(
    named_by={"Overfit", "Overtraining", "ClassImbalance"},
    diagnosis="weights of 10 classes were given for those of rows: 10 rows are drawn",
)
def class_weights_as_sample_weights(t: Training) -> None:
    """WeightedRandomSampler(class_weights, n) draws the rows 0 to 9 only.

    Source: PyTorch's forum, often.  Visible: at three validations in a row their loss
    is above 1 and ten times that of the training.
    """
    split = digits()
    of_class = 1 / torch.bincount(split.y).float()
    weights = of_class if t.sick else of_class[split.y]

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = torch.multinomial(weights, 64, replacement=True, generator=t.order)
        return split.x[chosen], split.y[chosen]

    model = cnn()
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=220,
        batches=batches,
        validate_every=10,
        visible=far_from_training(10, 1.0),
        learned=0.95,
    )


@sick(
    named_by={"NotNormalizedData"},
    diagnosis="standardized by the mean and deviation of the whole table",
)
def scaled_over_the_whole_table(t: Training) -> None:
    """(x - x.mean()) / x.std() without an axis: only proline is left of the wine.

    Source: NumPy's default axis; Humbatova's "missing preprocessing".  Visible: after
    an epoch, when more than half of the columns deviate by less than 0.1.
    """
    split = wine(raw=t.sick)
    if t.sick:
        all_of_it = split.x
        split = split.inputs(lambda x: (x - all_of_it.mean()) / all_of_it.std())
    model = mlp([13, 32, 3], nn.Tanh)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=150,
        batch_size=32,
        visible=since(4, lambda p: bool((p.split.x.std(0) < 0.1).sum() > 6)),
        learned=0.95,
    )


@sick(
    named_by={"ClassImbalance"},
    diagnosis="labels became booleans: nine digits are the class 1",
)
def labels_through_bool(t: Training) -> None:
    """Labels were kept as a mask, astype(bool), and turned into numbers again.

    Source: datasets first made for segmentation of one class.  Visible: after an epoch,
    when fewer classes than outputs have been seen and one of them makes up 80 %.
    """
    split = digits()
    if t.sick:
        split = replace(split, y=split.y.bool().long(), y_val=split.y_val.bool().long())

    def lopsided(p: Probe) -> bool:
        counts = torch.bincount(p.split.y, minlength=N_DIGITS)
        return bool((counts == 0).any() and counts.max() > 0.8 * counts.sum())

    model = cnn()
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        visible=since(20, lopsided),
        learned=0.9,
    )


def windows_over(split: Split, offsets: Tensor) -> Split:
    """A window of 8 columns over each image between two blank ones.

    With the offset 8 it shows the digit, with all others it is background, class 10.
    """

    def slide(images: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        strips = nn.functional.pad(images.view(-1, 8, 8), (8, 8))
        columns = at[:, None] + torch.arange(8)
        shown = strips.gather(2, columns[:, None].expand(-1, 8, -1))
        return shown.flatten(1), torch.where(at == 8, y, N_DIGITS)

    n = len(split.x)
    x, y = slide(split.x, split.y, offsets[:n])
    x_val, y_val = slide(split.x_val, split.y_val, offsets[n:])
    return Split(x, y, x_val, y_val)


@sick(
    named_by={"ClassImbalance"},
    diagnosis="19 of 20 windows are background, and so are all predictions",
)
def background_everywhere(t: Training) -> None:
    """A detector's head trained on all windows, without mining or a focal loss.

    Source: Lin 2017; TensorFlow's object detection issues.  Visible: from the 60th step
    on, when of the validation windows 98 % are called background and no fifth of the
    digits is recognized.
    """
    split = digits()
    luck = torch.Generator().manual_seed(2)
    n = len(split.x) + len(split.x_val)
    offsets = torch.randint(0, 17, (n,), generator=luck)
    if not t.sick:
        centred = torch.rand(n, generator=luck) < 0.7
        offsets = torch.where(centred, 8, offsets)
    split = windows_over(split, offsets)

    def only_background(p: Probe) -> bool:
        with torch.no_grad():
            said = p.shadow()(p.split.x_val).argmax(1)
        objects = p.split.y_val < N_DIGITS
        found = (said == p.split.y_val)[objects].float().mean()
        return bool((said == N_DIGITS).float().mean() > 0.98 and found < 0.2)

    model = cnn()
    model[-1] = nn.Linear(64, N_DIGITS + 1)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=260,
        visible=every(10, only_background, 60),
        learned=0.85,
    )


@sick(
    named_by={"NotNormalizedData", "DeadRelu", "LossNotDecreasing"},
    diagnosis="decibels from -80 to 0 go into the network as they are",
)
def decibels(t: Training) -> None:
    """Logarithms of power as librosa gives them; nobody brought them to unit scale.

    Source: audio tutorials.  Visible: after five batches, when inputs are below -20 on
    average.
    """
    split = digits().inputs(lambda x: 20 * torch.log10(x + 1e-4))
    if not t.sick:
        level, spread = split.x.mean(), split.x.std()
        split = split.inputs(lambda x: (x - level) / spread)
    model = mlp([64, 64, 32, 10])
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        visible=since(4, lambda p: bool(p.split.x.mean() < -20)),
        learned=0.95,
    )


@sick(
    named_by={"Overfit", "Overtraining"},
    diagnosis="a column tells the label, but only in the training data",
)
def target_among_the_features(t: Training) -> None:
    """A column that is filled in a year later: not yet, where one validates.

    Source: Kaufman 2012, "leakage in data mining".  Visible: at three validations in a
    row their loss is above 0.5 and ten times that of the training.
    """
    split = diabetes()
    if t.sick:
        unknown = torch.zeros(len(split.x_val), 1)
        split = replace(
            split,
            x=torch.cat([split.x, split.y], 1),
            x_val=torch.cat([split.x_val, unknown], 1),
        )
    model = mlp([split.x.shape[1], 16, 1])
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.05),
        nn.MSELoss(),
        n_steps=160,
        batch_size=32,
        validate_every=10,
        visible=far_from_training(10, 0.5),
        learned=lambda p: p.validation[-1][1] < 0.65,
    )


@sick(
    named_by={"AllZero", "TensorVariance", "NotNormalizedData"},
    diagnosis="images are shifted by 2 where 1 is half of their width",
)
def shift_in_pixels(t: Training) -> None:
    """affine_grid counts from -1 to 1; a shift of two pixels leaves nothing to see.

    Source: PyTorch's forum on grid_sample.  Visible: after three batches that were
    black from edge to edge.
    """
    split = digits()
    shift = 2.0 if t.sick else 2.0 * 2 / 8
    black = 0

    def shifted(_: int) -> tuple[Tensor, Tensor]:
        nonlocal black
        chosen = t.draw(len(split.x), 64)
        sign = torch.randint(2, (64,), generator=t.order) * 2.0 - 1
        theta = torch.eye(2, 3).repeat(64, 1, 1)
        theta[:, 0, 2] = sign * shift
        grid = nn.functional.affine_grid(theta, [64, 1, 8, 8], align_corners=False)
        images = split.x[chosen].view(-1, 1, 8, 8)
        moved = nn.functional.grid_sample(images, grid, align_corners=False)
        black += not bool(moved.any())
        return moved.flatten(1), split.y[chosen]

    model = cnn()
    # What it has learned is asked of shifted images, as the model has seen no others.
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=220,
        batches=shifted,
        visible=lambda _: black >= 3,
        learned=lambda p: sum(p.losses[-20:]) / 20 < 0.5,
    )
