"""Evaluation that does not tell what the model is worth, and modes that are wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import Split, breast_cancer, digits, patches, wine
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation, right
from benchmarks.detection.kit.loops import Loop, adam, descend, pretrain, sgd
from benchmarks.detection.kit.models import Residual, cnn, mlp
from benchmarks.detection.kit.training import Training


class Dropped(nn.Module):
    """Drops units by the function, which is on unless it is told otherwise."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        on = True if self.always else self.training
        return self.head(functional.dropout(self.hidden(x).relu(), 0.6, training=on))


@sixth.silent("random in evaluation", "F.dropout without training=self.training")
def drops_units_in_evaluation(t: Training) -> None:
    """``functional.dropout(x, 0.6)`` in forward drops units in evaluation, too.

    Source: the documentation of functional.dropout (training=True by default), and
    forum threads on predictions that differ in eval().
    Visible: the same images get other answers the second time.
    """
    split = digits()
    model = Dropped(always=t.sick)
    Loop(t, model, split, adam(3e-3), validate_every=25).run(150)
    first, second = (in_evaluation(model, lambda: model(split.x_val)) for _ in range(2))
    differs = float((first.argmax(1) != second.argmax(1)).float().mean())
    accuracy = right(first, split.y_val)
    t.note(differs=differs, accuracy=accuracy)
    conclude(t, fault=differs > 0.03, reached=accuracy > 0.85)


@sixth.silent(
    "not back in training mode", "no model.train() after the first evaluation"
)
def never_back_in_training(t: Training) -> None:
    """The model is evaluated after 20 batches, and stays in eval() from then on.

    Source: Karpathy's most common mistakes (2018): "you forgot to toggle train/eval
    mode for the net"; train() stands before the loop over epochs.
    Visible: it is not in training mode at the next step; without dropout it knows the
    few images it has by heart.
    """
    split = digits().take(torch.arange(120))
    model = mlp([64, 128, 128, 10], dropout=0.6)
    optimizer = Adam(model.parameters(), 2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    model.train()
    modes = []
    for step, rows in t.batches(300, len(split.x), 30):
        modes.append(model.training)
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        if step % 20 == 19:
            t.evaluate(model, criterion, split.x_val, split.y_val)
            if t.sick:
                model.eval()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=not modes[-1], reached=accuracy > 0.8, harms=False)


def optimism(
    t: Training, split: Split, told: tuple[Tensor, Tensor], n_steps: int = 200
) -> None:
    """Train, evaluated on *told*; the fault is that it tells more than is true.

    The validation data of *split* are really new.
    """
    model = mlp([split.x.shape[1], 96, int(split.y.max()) + 1])
    shown = replace(split, x_val=told[0], y_val=told[1])
    Loop(t, model, shown, adam(3e-3), validate_every=20).run(n_steps)
    said = held_out(model, *told)
    true = held_out(model, split.x_val, split.y_val)
    both = torch.cdist(told[0], split.x).min(1).values
    t.note(said=said, true=true, trained_on=float((both < 1e-6).float().mean()))
    seen = bool((both < 1e-6).float().mean() > 0.2)
    conclude(t, fault=seen, reached=abs(said - true) < 0.06)


def noisy(split: Split, share: float = 0.3) -> Split:
    """The same with so many wrong labels, so that learning by heart does not help."""
    luck = torch.Generator().manual_seed(2)

    def changed(y: Tensor) -> Tensor:
        other = torch.randint(int(y.max()) + 1, y.shape, generator=luck)
        return torch.where(torch.rand(y.shape, generator=luck) < share, other, y)

    return replace(split, y=changed(split.y), y_val=changed(split.y_val))


@sixth.silent(
    "evaluated on what was trained on", "the validation data are training data"
)
def validated_on_training_data(t: Training) -> None:
    """``val_loader = DataLoader(train_set)``: one word is wrong.

    Source: Kapoor and Narayanan, "Leakage and the reproducibility crisis" (2023):
    no separation of training and test data (L1.1).
    Visible: validation rows are training rows, and what is said is 6 points too good.
    """
    split = noisy(digits().take(torch.arange(400)))
    half = len(split.x_val) // 2
    honest = (split.x_val[:half], split.y_val[:half])
    rest = replace(split, x_val=split.x_val[half:], y_val=split.y_val[half:])
    optimism(t, rest, (split.x[:half], split.y[:half]) if t.sick else honest, 700)


@sixth.silent(
    "evaluated on what was trained on", "rows were multiplied before the split"
)
def oversampled_before_the_split(t: Training) -> None:
    """The rare class is oversampled first, then the table is split at random.

    Source: Kapoor and Narayanan (2023): preprocessing of training and test data
    together, and duplicates (L1.2, L1.4); imbalanced-learn's "Common pitfalls".
    Visible: as above.
    """
    whole = noisy(breast_cancer())
    x, y = (
        torch.cat((whole.x, whole.x_val[:40])),
        torch.cat((whole.y, whole.y_val[:40])),
    )
    new = replace(whole, x_val=whole.x_val[40:], y_val=whole.y_val[40:])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    if t.sick:
        three = order.repeat(3)[
            torch.randperm(3 * len(x), generator=torch.Generator().manual_seed(4))
        ]
        told, known = three[:300], three[300:]
    else:
        told, known = order[:110], order[110:].repeat(3)
    optimism(t, replace(new, x=x[known], y=y[known]), (x[told], y[told]), 300)


def shaken(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images that are rolled, dimmed and noisy."""
    by = torch.randint(-1, 2, (len(x), 2), generator=generator)
    pictures = x.view(-1, 8, 8)
    rolled = torch.stack(
        [
            p.roll((int(a), int(b)), (0, 1))
            for p, (a, b) in zip(pictures, by, strict=True)
        ]
    )
    noise = torch.randn(rolled.shape, generator=generator) * 0.2
    return (rolled + noise).flatten(1)


@sixth.silent("random in evaluation", "the training's augmentation is on in evaluation")
def augments_in_evaluation(t: Training) -> None:
    """``random_split`` of one dataset: both parts share its transform.

    Source: discuss.pytorch.org/t/data-transformation-for-training-and-validation-data
    /32507 (ptrblck: predictions differ for the same sample).
    Visible: the same validation images are others each time, and what is said of them
    is 6 points less than the model is worth.
    """
    split = digits()
    model = cnn()
    optimizer = Adam(model.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    x, y = split.x_val[:200], split.y_val[:200]

    def of_evaluation() -> Tensor:
        return shaken(x, t.order) if t.sick else x

    for step, rows in t.batches(350, len(split.x), 32):
        given = shaken(split.x[rows], t.order)
        descend(optimizer, criterion(model(given), split.y[rows]))
        if step % 20 == 19:
            t.evaluate(model, criterion, of_evaluation(), y)
    said = held_out(model, of_evaluation(), y)
    true = held_out(model, x, y)
    t.note(said=said, true=true)
    other = not torch.equal(of_evaluation(), of_evaluation())
    conclude(t, fault=other, reached=said > true - 0.06 and true > 0.8)


@sixth.silent("other inputs in evaluation", "evaluation reads BGR, training read RGB")
def blue_for_red_in_evaluation(t: Training) -> None:
    """Training reads images with PIL (RGB), evaluation with OpenCV (BGR).

    Source: OpenCV's documentation of imread ("channels stored in B G R order"), and
    threads on models of another order of channels.
    Visible: validation images have the means of red and blue exchanged, and accuracy
    on them is 5 points below that on images in the right order.
    """
    split = patches(size=8, n=900).inputs(lambda x: x / 127.5 - 1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    seen = split.x_val.flip(1) if t.sick else split.x_val
    Loop(t, model, replace(split, x_val=seen), adam(5e-3), validate_every=25).run(200)
    said, true = (held_out(model, x, split.y_val) for x in (seen, split.x_val))
    t.note(said=said, true=true)
    apart = (seen - split.x_val).abs().mean()
    conclude(t, fault=apart > 0.05, reached=said > true - 0.05 and true > 0.8)


@sixth.silent(
    "other inputs in evaluation", "the scaler is fitted again on each test batch"
)
def scaler_fitted_again(t: Training) -> None:
    """``scaler.fit_transform(x_test)`` in place of ``transform``.

    Source: scikit-learn, "Common pitfalls and recommended practices": inconsistent
    preprocessing.
    Visible: wines of one kind, as they arrive, get their own mean of 0; accuracy on
    them is below 85 %.
    """
    split = wine()
    model = mlp([13, 32, 3])
    optimizer, criterion = Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    order = split.y_val.argsort()
    arrivals = [(split.x_val[i], split.y_val[i]) for i in order.split(15)]

    def scaled(x: Tensor) -> Tensor:
        return (x - x.mean(0)) / x.std(0) if t.sick else x

    for step, rows in t.batches(150, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        if step % 25 == 24:
            for x, y in arrivals:
                t.evaluate(model, criterion, scaled(x), y)
    said = sum(held_out(model, scaled(x), y) for x, y in arrivals) / len(arrivals)
    moved = max(float((scaled(x) - x).abs().mean()) for x, _ in arrivals)
    t.note(said=said, moved=moved)
    conclude(t, fault=moved > 0.1, reached=said > 0.85)


@sixth.silent(
    "momentum of running statistics", "BatchNorm2d(momentum=0.99), as Keras has it"
)
def momentum_of_keras(t: Training) -> None:
    """Keras' momentum of 0.99 is written as PyTorch's, which is 1 minus that.

    Source: the note in the documentation of BatchNorm: its momentum "is different from
    the one used in optimizer classes and the conventional notion".
    Visible: running statistics are those of the last 8 images: they differ from those
    of all by a quarter of a deviation.
    """
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 48),
        nn.BatchNorm1d(48, momentum=0.99 if t.sick else 0.1),
        nn.ReLU(),
        nn.Linear(48, 10),
    )
    Loop(t, model, split, sgd(0.02), batch_size=8, validate_every=50).run(400)
    norm = model[1]
    with torch.no_grad():
        hidden = model[0](split.x)
    off = ((norm.running_mean - hidden.mean(0)) / hidden.std(0)).abs().mean()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(off=off, accuracy=accuracy)
    conclude(t, fault=off > 0.2, reached=accuracy > 0.9, harms=False)


@sixth.silent("frozen statistics move", "frozen BatchNorm goes on averaging")
def frozen_norms_move(t: Training) -> None:
    """``requires_grad = False`` for the trunk, but its BatchNorm is in training mode.

    Source: github.com/keras-team/keras/pull/9965 ("Change BN layer to use moving
    mean/var if frozen") and forum threads on freezing BatchNorm.
    Visible: buffers of the frozen trunk change, and what it knew of upright digits,
    it has lost after tuning on dark ones.
    """
    split = digits()
    model = Residual()
    pretrain(model, split, 150)
    old_head = nn.Linear(32, 10)
    old_head.load_state_dict(model.head.state_dict())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.head = nn.Linear(32, 10)
    before = model.norm.running_mean.clone()
    optimizer, criterion = Adam(model.head.parameters(), 5e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(120, len(split.x), 32):
        model.train(t.sick)
        descend(optimizer, criterion(model(1 - split.x[rows]), split.y[rows]))
    moved = float((model.norm.running_mean - before).abs().max())
    model.head = old_head
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(moved=moved, accuracy=accuracy)
    conclude(t, fault=moved > 1e-3, reached=accuracy > 0.9)


class Waves:
    """Stretches of a wandering signal, each to be continued."""

    def __init__(self) -> None:
        luck = torch.Generator().manual_seed(8)
        steps = torch.randn(900, generator=luck)
        signal = steps.cumsum(0)
        signal = (signal - signal.mean()) / signal.std()
        at = torch.arange(900 - 17)[:, None] + torch.arange(16)
        self.x, self.y = (
            signal[at],
            (signal[at[:, -1] + 1] - signal[at[:, -1]])[:, None],
        )
        self.y = self.y / self.y.std()


@sixth.silent(
    "evaluated on what was trained on", "overlapping windows are split at random"
)
def windows_shuffled_before_the_split(t: Training) -> None:
    """Windows of a time series overlap, and are split at random, not by time.

    Source: Kapoor and Narayanan, "Leakage and the reproducibility crisis" (2023):
    temporal leakage (L3.1).
    Visible: nine tenths of validation windows share 15 of 16 values with a window of
    the training.
    """
    waves = Waves()
    n = len(waves.x)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    known, told = (
        (order[200:], order[:200])
        if t.sick
        else (torch.arange(n - 216), torch.arange(n - 200, n))
    )
    split = Split(waves.x[known], waves.y[known], waves.x[told], waves.y[told])
    model = mlp([16, 64, 1])
    criterion = nn.MSELoss()
    Loop(t, model, split, adam(3e-3), criterion, validate_every=25).run(250)
    neighbours = (told[:, None] - known[None]).abs().min(1).values <= 1
    shared = float(neighbours.float().mean())
    said = float(in_evaluation(model, lambda: criterion(model(split.x), split.y)))
    t.note(shared=shared, trained_loss=said)
    conclude(t, fault=shared > 0.5, reached=said < 1.1, harms=False)


@sixth.silent("stale statistics", "update_bn was not called for the average")
def average_without_update_bn(t: Training) -> None:
    """``update_bn`` is not called: the SWA model has another model's statistics.

    Source: pytorch.org/blog/pytorch-1.6-now-includes-stochastic-weight-averaging and
    github.com/pytorch/pytorch/issues/84053 (buffers of AveragedModel).
    Visible: ``update_bn`` moves its running means by a hundredth of a deviation or
    more (with some seeds it recognizes 15 points more then).
    """
    split = digits()
    model = Residual()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer, criterion = SGD(model.parameters(), 0.05, 0.9), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, rows in t.batches(160, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        if step >= 80 and step % 4 == 0:
            average.update_parameters(model)
    if not t.sick:
        torch.optim.swa_utils.update_bn(split.x.split(64), average)
    fed = copy.deepcopy(average)
    torch.optim.swa_utils.update_bn(split.x.split(64), fed)
    accuracy, mended = (held_out(m, split.x_val, split.y_val) for m in (average, fed))
    norms = [net.module.blocks[-1].body[-1] for net in (average, fed)]
    off = norms[0].running_mean - norms[1].running_mean
    far = float((off.abs() / norms[1].running_var.sqrt()).mean())
    t.note(accuracy=accuracy, mended=mended, far=far)
    conclude(t, fault=far > 0.01, reached=accuracy > 0.93, harms=False)
