"""Classes that are rare, missing, or confused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    Split,
    breast_cancer,
    digits,
    flowers,
    kinds_of_lines,
    lines,
    rows_of,
    thin_out,
    wine,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    adamw,
    sgd,
    shuffled,
)
from benchmarks.detection.kit.models import Convolved, Lines, Residual, cnn, mlp
from benchmarks.detection.kit.probes import Noted, every, lasting, since
from benchmarks.detection.kit.training import Training


def recall(outputs: Tensor, targets: Tensor, n_classes: int) -> Tensor:
    """Share of the members of each class that are recognized."""
    right = outputs.argmax(1) == targets
    return torch.stack([right[targets == k].float().mean() for k in range(n_classes)])


def mistakes_for(
    pair: tuple[int, int], limit: float, others: float, *, both_ways: bool = False
) -> Predicate:
    """On validation data: one class is taken for another, the rest is well known.

    Of the first of the pair more than *limit* is taken for the second (or also the
    other way round, on average), while of the other classes *others* or more is
    recognized.
    """

    def holds(p: Probe) -> bool:
        n = int(p.split.y_val.max()) + 1
        with torch.no_grad():
            said = p.shadow()(p.split.x_val)
        taken = [
            float((said[p.split.y_val == a].argmax(1) == b).float().mean())
            for a, b in (pair, pair[::-1])
        ]
        rest = [k for k in range(n) if k not in pair]
        known = recall(said, p.split.y_val, n)[rest].mean()
        wrong = sum(taken) / 2 if both_ways else taken[0]
        return bool(wrong > limit and known >= others)

    return holds


@first.sick("Confusion", "annotators wrote 3 for half of the eights")
def annotators_disagree(t: Training) -> None:
    """Half of one class bears the label of another.

    Source: Northcutt, Jiang, Chuang 2021, "Confident learning": class-conditional
    noise; Humbatova et al. 2020: wrong labels.  Visible: at two looks in a row, 10
    steps apart, more than 20 % of the eights of the validation data are taken for
    threes, and of the other digits 85 % are known.
    """
    split = digits()
    if t.sick:
        chance = torch.rand(len(split.y), generator=t.order)
        wrong = (split.y == 8) & (chance < 0.5)
        split = Split(split.x, split.y.masked_fill(wrong, 3), split.x_val, split.y_val)
    loop = Loop(t, mlp([64, 64, 10]), split, adam(3e-3))
    visible = every(10, lasting(mistakes_for((8, 3), 0.2, 0.85), 2), 40)
    loop.run(200, visible=visible, learned=0.95)


def merged(targets: Tensor) -> Tensor:
    """Nines as eights: of a table of labels that ends at 8."""
    return targets.clamp(max=8)


@first.sick("Confusion ClassImbalance", "labels were clamped to 8: there are no nines")
def clamped_labels(t: Training) -> None:
    """Labels are clamped to a range that is one too small.

    Source: Islam et al. 2019, "A Comprehensive Study on Deep Learning Bug
    Characteristics": off by one in the number of classes; many a `min(label, n_classes
    - 1)` put there to silence an assertion of the loss.  Visible: at two looks in a
    row, 10 steps apart, more than 60 % of the nines of the validation data are taken
    for eights, and of the other digits 85 % are known.
    """
    split = digits()
    if t.sick:
        split = Split(split.x, merged(split.y), split.x_val, split.y_val)
    loop = Loop(t, mlp([64, 64, 10]), split, adam(3e-3))
    visible = every(10, lasting(mistakes_for((9, 8), 0.6, 0.85), 2), 40)
    loop.run(150, visible=visible, learned=0.92)


def recall_below(classes: list[int], limit: float, others: float) -> Predicate:
    """On validation data: these classes are missed while the others are known.

    Of each of *classes* less than *limit* is recognized, of the others *others* or
    more on average.
    """

    def holds(p: Probe) -> bool:
        n = int(p.split.y_val.max()) + 1
        with torch.no_grad():
            found = recall(p.shadow()(p.split.x_val), p.split.y_val, n)
        rest = [k for k in range(n) if k not in classes]
        return bool((found[classes] < limit).all() and found[rest].mean() >= others)

    return holds


@first.sick("ClassImbalance", "2 eights among 1200 digits")
def rare_digit(t: Training) -> None:
    """A class of which hardly any example was collected.

    Source: Buda, Maki, Mazurowski 2018, "A systematic study of the class imbalance
    problem in convolutional neural networks"; Humbatova et al. 2020, "Taxonomy of Real
    Faults in Deep Learning Systems": unbalanced training data.  Visible: from step 60
    on, at two looks in a row, 10 steps apart, less than half of the eights of the
    validation data are recognized, and 85 % of the other digits.
    """
    split = thin_out(digits(), 8, 2) if t.sick else digits()
    loop = Loop(t, mlp([64, 64, 10]), split, adam(3e-3))
    visible = every(10, lasting(recall_below([8], 0.5, 0.85), 2), 60)
    loop.run(150, visible=visible, learned=0.92)


@first.sick("ClassImbalance", "2 % of the tumours are malignant")
def rare_disease(t: Training) -> None:
    """Two classes, one of which is 50 times as frequent; accuracy looks splendid.

    Source: Johnson, Khoshgoftaar 2019, "Survey on deep learning with class imbalance":
    screening for diseases and fraud.  Visible: at two looks in a row, 10 steps apart,
    less than half of the malignant tumours of the validation data are recognized, and
    95 % of the others.
    """
    split = breast_cancer()
    if t.sick:
        split = thin_out(split, 0, 5)
    loop = Loop(t, mlp([30, 16, 2]), split, sgd(0.1), batch_size=32)
    visible = every(10, lasting(recall_below([0], 0.5, 0.95), 2))
    loop.run(150, visible=visible, learned=0.95)


@first.sick(
    "ClassImbalance Confusion", "the split was made of sorted data: a class is missing"
)
def split_of_sorted_rows(t: Training) -> None:
    """The first rows of a file are taken to train on, but the file is by class.

    Source: the most common answer to "validation accuracy is zero" with scikit-learn's
    wine and iris, which are sorted; scikit-learn's user guide, "Cross-validation":
    shuffle before splitting if samples of the same class are contiguous.  Visible: at
    two looks in a row, 10 steps apart, none of the third class is recognized, and 80 %
    or more of the others.
    """
    split = wine()
    if t.sick:
        by_class = torch.argsort(split.y, stable=True)
        n_known = int((split.y < 2).sum())
        split = split.take(by_class[: n_known + 1])
    loop = Loop(t, mlp([13, 32, 3]), split, adam(3e-3), batch_size=32)
    visible = every(10, lasting(recall_below([2], 0.2, 0.8), 2))
    loop.run(120, visible=visible, learned=0.95)


@fourth.sick("ClassImbalance", "one part in a hundred is defective")
def defects_are_rare(t: Training) -> None:
    """A detector of defects (eights) is trained on what the line turns out.

    Source: every dataset of inspection; He and Garcia 2009, "Learning from Imbalanced
    Data".  The twin has as many good parts as bad ones.  Visible: of the labels of the
    first 20 batches less than one in 50 is a defect.
    """
    split = digits()
    bad = split.y == 8
    good_ones, bad_ones = torch.nonzero(~bad)[:, 0], torch.nonzero(bad)[:, 0]
    some = (
        (good_ones, bad_ones[:13]) if t.sick else (good_ones[: len(bad_ones)], bad_ones)
    )
    split = split.take(torch.cat(some))
    split = replace(
        split,
        y=(split.y == 8).float()[:, None],
        y_val=(split.y_val == 8).float()[:, None],
    )
    batches = Noted(t, split, 32)
    model = mlp([64, 48, 24, 1], nn.LeakyReLU)
    loop = Loop(t, model, split, adam(2e-3), nn.BCEWithLogitsLoss(), batches=batches)
    visible = batches.after(20, lambda _, y: y.mean() < 0.02)
    loop.run(160, visible=visible, learned=lambda p: p.accuracy() > 0.95)


@fourth.sick("ClassImbalance", "kinds of text as frequent as they are")
def lines_as_they_are_found(t: Training) -> None:
    """Lines are scraped and labelled; one kind is a hundred times rarer than another.

    Source: ticket and mail sorting, where the queue of complaints is small; Buda et al.
    2018.  Visible: of 1000 labels, less than one in 40 is of the rarest kind.
    """
    of = kinds_of_lines()
    counts = (1500, 900, 60, 20) if t.sick else (400, 400, 400, 400)
    lines = [line for kind, n in zip(of, counts, strict=True) for line in kind[:n]]
    labels = [k for k, n in enumerate(counts) for _ in range(min(n, len(of[k])))]
    rows = rows_of(lines, 48)
    targets = torch.tensor(labels)
    split = Split(rows, targets, rows[::7], targets[::7])
    batches = Noted(t, split, 48)
    model = Convolved(N_CHARACTERS, 4)
    loop = Loop(t, model, split, adamw(3e-3), batches=batches, validate_every=60)
    visible = batches.after(21, lambda _, y: (y == 3).float().mean() < 0.025)
    loop.run(180, visible=visible, learned=0.9)


@fourth.sick(
    "Confusion Underfitting",
    "only the sepals are read: two of three irises look the same",
)
def petals_left_out(t: Training) -> None:
    """usecols=[0, 1] from a first look at the table stays in the script.

    Source: the plots of Fisher's irises that every tutorial begins with: virginica and
    versicolor overlap in their sepals.  Visible: from 100 on, more than a fifth of the
    two are taken for each other on validation data, and 85 % of the third is known.
    """
    split = flowers()
    if t.sick:
        split = split.inputs(lambda x: x[:, :2])
    model = mlp([split.x.shape[1], 16, 3], nn.Tanh)
    loop = Loop(t, model, split, adam(1e-2), batch_size=16, validate_every=10)
    visible = since(100, mistakes_for((1, 2), 0.2, 0.85, both_ways=True))
    loop.run(200, visible=visible, learned=0.93)


@fourth.sick(
    "Confusion", "the validation folder has no class 2, and all others move up"
)
def class_missing_in_validation(t: Training) -> None:
    """ImageFolder numbers the folders that it finds: one is missing in validation.

    Source: PyTorch's forum on class_to_idx that differs between two ImageFolders.  The
    twin numbers as the training does.  Visible: at three validations in a row less than
    a fifth of what is above the gap is right, though 90 % of the training is.
    """
    split = digits()
    there = split.y_val != 2
    labels = split.y_val[there]
    moved = labels - (labels > 2).long() if t.sick else labels
    split = replace(split, x_val=split.x_val[there], y_val=moved)
    times = 0

    def wrong_above(p: Probe) -> bool:
        nonlocal times
        if not p.validation or p.validation[-1][0] != p.step:
            return False
        with torch.no_grad():
            said = p.shadow()(split.x_val).argmax(1)
        right = float((said == moved)[labels > 2].float().mean())
        times = times + 1 if right < 0.2 and p.accuracy() > 0.9 else 0
        return times >= 3

    model = mlp([64, 80, 40, 10], nn.SiLU)
    loop = Loop(t, model, split, adamw(3e-3), batch_size=50, validate_every=20)
    loop.run(200, visible=wrong_above, learned=0.95)


def rare_class(share: float, n_batches: int) -> Predicate:
    """After an epoch: a class has less than this share of an even one."""

    def holds(p: Probe) -> bool:
        counts = torch.bincount(p.split.y).double()
        return bool(counts.min() / counts.sum() < share / len(counts))

    return since(n_batches - 1, holds)


def thinned(split: Split, classes: list[int], keep: float) -> Split:
    """Of these classes only a share is left to train on."""
    rare = torch.isin(split.y, torch.tensor(classes))
    luck = torch.rand(len(rare), generator=torch.Generator().manual_seed(3))
    return split.take(~rare | (luck < keep))


@second.sick("ClassImbalance", "one tumour in thirty is malignant")
def malignant_ones_left_out(t: Training) -> None:
    """The archive keeps few malignant cases, and nobody weighs them.

    Source: every tutorial on fraud and screening data.  Visible: when an epoch of
    labels has been seen, one class has less than a fifth of an even share.
    """
    split = thinned(breast_cancer(), [0], 0.07 if t.sick else 1.0)
    model = mlp([30, 32, 16, 2], nn.SiLU)
    loop = Loop(t, model, split, adam(2e-3), batches=shuffled(t, split, 16))
    loop.run(160, visible=rare_class(0.2, len(split.x) // 16), learned=0.95)


@second.sick("ClassImbalance", "three digits of ten are hardly there")
def rare_digits(t: Training) -> None:
    """Some forms were scanned rarely; a residual network learns the others.

    Source: long-tailed recognition (Cui et al. 2019).  Visible: after an epoch, a class
    has less than a fifth of an even share.
    """
    split = thinned(digits(), [3, 8, 9], 0.05 if t.sick else 1.0)
    model = Residual(8, 1)
    optimizer = sgd(0.05, momentum=0.9, nesterov=True)
    loop = Loop(t, model, split, optimizer, batches=shuffled(t, split, 32))
    loop.run(140, visible=rare_class(0.2, len(split.x) // 32), learned=0.9)


@second.sick("ClassImbalance", "the sampler prefers the frequent class")
def sampler_weights_upside_down(t: Training) -> None:
    """Sampling weights are the counts of the classes instead of one over them.

    Source: the forum's threads on WeightedRandomSampler.  Visible: of 600 labels drawn
    a class has less than a fifth of an even share.
    """
    split = lines(most=None)
    counts = torch.bincount(split.y).double()
    weights = (counts**1.5 if t.sick else 1 / counts)[split.y]
    model = Lines(N_CHARACTERS, len(counts))
    drawn: list[torch.Tensor] = []

    def batch(_: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.multinomial(weights, 32, replacement=True, generator=t.order)
        drawn.append(split.y[chosen])
        return split.x[chosen], split.y[chosen]

    def rare(_: Probe) -> bool:
        seen = torch.bincount(torch.cat(drawn), minlength=len(counts)).double()
        return bool(seen.sum() >= 600 and seen.min() / seen.sum() < 0.2 / len(seen))

    loop = Loop(t, model, split, adam(4e-3), batches=batch)
    loop.run(260, visible=rare, learned=0.6)


@second.sick("Confusion", "most threes were labelled as eights")
def threes_labelled_as_eights(t: Training) -> None:
    """An older model proposed the labels, and nobody corrected its favourite mistake.

    Source: pre-annotation.  Visible: when, of validation data labelled rightly, more
    than half of the threes are taken for eights and 90 % of the rest is known.
    """
    split = digits()
    if t.sick:
        luck = torch.rand(len(split.y), generator=torch.Generator().manual_seed(1))
        proposed = torch.where((split.y == 3) & (luck < 0.65), 8, split.y)
        split = Split(split.x, proposed, split.x_val, split.y_val)
    loop = Loop(t, cnn(), split, adam(3e-3))
    loop.run(400, visible=every(10, mistakes_for((3, 8), 0.5, 0.9), 50), learned=0.95)


@second.sick("Confusion", "two annotators disagree on two classes")
def annotators_guess(t: Training) -> None:
    """Labels 4 and 7 were given by guess; the others rightly.

    Source: crowd labels.  Visible: when, of validation data labelled like that, a third
    of both is taken for the other and 90 % of the rest is known.
    """
    split = digits()
    if t.sick:

        def guessed(y: Tensor, seed: int) -> Tensor:
            luck = torch.rand(len(y), generator=torch.Generator().manual_seed(seed))
            either = torch.where(luck < 0.5, 4, 7)
            return torch.where((y == 4) | (y == 7), either, y)

        split = Split(
            split.x, guessed(split.y, 1), split.x_val, guessed(split.y_val, 2)
        )
    model = Residual(8, 1)
    optimizer = sgd(0.02, momentum=0.9)
    loop = Loop(t, model, split, optimizer, batches=shuffled(t, split, 64))
    visible = every(10, mistakes_for((4, 7), 0.3, 0.9, both_ways=True), 50)
    loop.run(300, visible=visible, learned=0.95)


N_DIGITS = 10


def in_order(n_rows: int, size: int) -> Iterator[Tensor]:
    """Likewise, but as the rows lie."""
    while True:
        yield from torch.arange(n_rows).split(size)


@third.sick(
    "UnshuffledData ClassImbalance LossSpike LossNotDecreasing",
    "sorted data without shuffling: each batch is of one class",
)
def sorted_without_shuffling(t: Training) -> None:
    """A DataLoader without shuffle=True on a folder that is sorted by class.

    Source: PyTorch's forum; Humbatova's "wrong selection of training data".  Visible:
    for ten steps, four fifths of all images are taken for one and the same digit.
    """
    split = digits()
    split = split.take(split.y.argsort(stable=True))
    order = (in_order if t.sick else t.epochs)(len(split.x), 64)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = next(order)
        return split.x[chosen], split.y[chosen]

    def one_favourite(p: Probe) -> bool:
        said = torch.bincount(p.outputs().argmax(1), minlength=N_DIGITS)
        return bool(said.max() > 0.8 * said.sum())

    loop = Loop(t, mlp([64, 64, 10]), split, sgd(0.1, momentum=0.9), batches=batches)
    loop.run(210, visible=lasting(one_favourite, 10), learned=0.95)


@third.sick("ClassImbalance", "labels became booleans: nine digits are the class 1")
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

    loop = Loop(t, cnn(), split, sgd(0.05, momentum=0.9))
    loop.run(200, visible=since(20, lopsided), learned=0.9)


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


@third.sick(
    "ClassImbalance", "19 of 20 windows are background, and so are all predictions"
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
    loop = Loop(t, model, split, sgd(0.05, momentum=0.9))
    loop.run(260, visible=every(10, only_background, 60), learned=0.85)
