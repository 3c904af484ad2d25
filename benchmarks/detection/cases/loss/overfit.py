"""A model that learns by heart, or for too long."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    UNKNOWN,
    Split,
    breast_cancer,
    diabetes,
    digits,
    kinds_of_lines,
    patients,
    prose,
    rows_of,
    text,
    vocabulary,
    windows,
    words,
    words_of,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    adamw,
    descend,
    mean,
    never,
    sgd,
    shuffled,
)
from benchmarks.detection.kit.models import (
    CharacterModel,
    Convolved,
    Encoder,
    Residual,
    WordTransformer,
    cnn,
    mlp,
)
from benchmarks.detection.kit.probes import every, lasting, validates
from benchmarks.detection.kit.training import Training


def by_heart(times: int = 3, ratio: float = 4.0) -> Predicate:
    """Validation loss has risen by 10 % from its best; training loss is far below.

    At *times* evaluations in a row, the training loss being the mean of the last 20
    batches, and far below: the validation loss is more than *ratio* times that.
    """
    held = 0
    seen = 0

    def holds(p: Probe) -> bool:
        nonlocal held, seen
        if len(p.validation) == seen:
            return False
        seen = len(p.validation)
        of_all = [loss for _, loss, _ in p.validation]
        train = sum(p.losses[-20:]) / 20
        bad = of_all[-1] > 1.1 * min(of_all) and of_all[-1] > ratio * train
        held = held + 1 if bad else 0
        return held >= times

    return holds


@first.sick("Overfit", "40 patients, 500 hidden units, no regularization")
def few_patients(t: Training) -> None:
    """A wide network learns 40 examples by heart.

    Source: Goodfellow et al. 2016, 5.2; Karpathy 2019, "overfit", then "regularize".
    The twin has all 331 examples, 16 units and weight decay.  Visible: at three
    evaluations in a row validation loss is 10 % above its best and four times the
    training loss.
    """
    split = diabetes()
    if t.sick:
        split = split.take(torch.arange(40))
    model = mlp([10, 500, 1] if t.sick else [10, 16, 1])
    optimizer = adam(3e-3, weight_decay=0.0 if t.sick else 1e-2)
    loop = Loop(
        t, model, split, optimizer, nn.MSELoss(), batch_size=32, validate_every=10
    )
    loop.run(300, visible=by_heart(), learned=validates(0.65))


@first.sick("Overfit", "a third of the labels is wrong, and learned")
def wrong_labels_by_heart(t: Training) -> None:
    """Noisy labels are learned one by one.

    Source: Zhang et al. 2017, "Understanding deep learning requires rethinking
    generalization"; Northcutt et al. 2021 on wrong labels in well known data.  Visible:
    at two looks in a row, 10 steps apart, accuracy by the training labels is above 92
    %, and on the validation data below 88 %.
    """

    def learned_noise(p: Probe) -> bool:
        return p.accuracy() > 0.92 and p.validation[-1][2] < 0.88

    split = breast_cancer()
    split = split.take(torch.arange(200))
    if t.sick:
        wrong = torch.rand(len(split.y), generator=t.order) < 0.33
        split = Split(
            split.x, torch.where(wrong, 1 - split.y, split.y), split.x_val, split.y_val
        )
    model = mlp([30, 128, 128, 2])
    loop = Loop(t, model, split, adam(3e-3), batch_size=32, validate_every=10)
    visible = every(10, lasting(learned_noise, 2))
    loop.run(250, visible=visible, learned=lambda p: p.validation[-1][2] > 0.9)


@first.sick("Overfit", "80 images to learn from, 256 units to do it with")
def few_images(t: Training) -> None:
    """A classifier that knows its 80 images and is sure of itself on others.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks"; Karpathy 2019.
    Visible: at three evaluations in a row validation loss is more than 5 times the
    training loss and above 0.3, when accuracy on the training data is 100 %.
    """
    held = 0

    def sure(p: Probe) -> bool:
        nonlocal held
        if p.step % 10 != 9:
            return False
        loss = p.validation[-1][1]
        bad = loss > 5 * sum(p.losses[-20:]) / 20 and loss > 0.3
        held = held + 1 if bad and p.accuracy() == 1.0 else 0
        return held >= 3

    split = digits()
    if t.sick:
        split = split.take(torch.arange(80))
    model = mlp([64, 256, 10])
    loop = Loop(t, model, split, adam(2e-3), batch_size=32, validate_every=10)
    loop.run(200, visible=sure, learned=0.95)


def no_better(n: int) -> Predicate:
    """The best validation loss is at least *n* evaluations old, within 1 %."""

    def holds(p: Probe) -> bool:
        of_all = [loss for _, loss, _ in p.validation]
        if len(of_all) <= n:
            return False
        return min(of_all[-n:]) > 0.99 * min(of_all[:-n])

    return holds


@first.sick("Overtraining Overfit", "the best model was had long ago; training goes on")
def trained_too_long(t: Training) -> None:
    """Nobody stops a regression that has converged.

    Source: Prechelt 1998, "Early Stopping - But When?"; Humbatova et al. 2020: wrong
    number of epochs. The twin stops when 4 evaluations brought nothing.  Visible: the
    best validation loss of the last 15 evaluations, 10 steps apart, is not 1 % better
    than the best before.
    """
    model = mlp([10, 64, 1], nn.Tanh)
    loop = Loop(t, model, diabetes(), adam(1e-2), nn.MSELoss(), validate_every=10)
    stop = never if t.sick else no_better(4)
    visible = no_better(15)
    loop.run(
        400,
        visible=visible,
        learned=lambda p: min(loss for _, loss, _ in p.validation) < 0.65,
        stop=stop,
    )


@first.sick(
    "Overtraining Overfit", "validation was at its best after a quarter of the training"
)
def tumours_for_too_long(t: Training) -> None:
    """A classifier is trained on until it is sure of everything.

    Source: as above; Soudry et al. 2018: the loss of separable data falls for ever on
    training data while that on validation data grows.  Visible: the best validation
    loss of the last 15 evaluations, 10 steps apart, is not 1 % better than the best
    before.
    """
    model = mlp([30, 64, 64, 2])
    optimizer = sgd(0.1, momentum=0.9)
    loop = Loop(t, model, breast_cancer(), optimizer, batch_size=32, validate_every=10)
    stop = never if t.sick else no_better(4)
    loop.run(600, visible=no_better(15), learned=0.95, stop=stop)


def far_from_training(times: float, above: float, patience: int = 3) -> Predicate:
    """So often in a row, validation loss is high and many times the training loss."""

    def holds(p: Probe) -> bool:
        if len(p.validation) < patience or p.validation[-1][0] != p.step:
            return False
        worst = min(loss for _, loss, _ in p.validation[-patience:])
        return worst > above and worst > times * mean(p.losses[-20:])

    return holds


@fourth.sick("Overfit", "all products of columns: more of them than rows")
def products_of_columns(t: Training) -> None:
    """PolynomialFeatures(3) makes 286 columns of 10, for 331 patients.

    Source: the textbook example (Hastie, Tibshirani, Friedman, chapter 7), and Kaggle's
    notebooks on feature engineering.  Visible: at three validations in a row, the loss
    is above 0.7 of the variance and three times that of the training.
    """
    split = patients()
    middle, deviation = split.x.mean(0), split.x.std(0)
    split = split.inputs(lambda x: (x - middle) / deviation)
    if t.sick:
        pairs = torch.combinations(torch.arange(10), 3, with_replacement=True)
        split = split.inputs(lambda x: torch.cat([x, x[:, pairs].prod(2).tanh()], 1))
    model = mlp([split.x.shape[1], 128, 1] if t.sick else [10, 8, 1])
    loop = Loop(
        t, model, split, adam(3e-3), nn.MSELoss(), batch_size=32, validate_every=10
    )
    loop.run(360, visible=far_from_training(3.0, 0.7), learned=validates(0.7))


@fourth.sick("Overfit", "80 lines were labelled, and are known by heart")
def eighty_labelled_lines(t: Training) -> None:
    """The first labels are in, and the network is trained on them until it is perfect.

    Source: every project that starts to label; Zhang 2017 on fitting by heart.  The
    twin has 1600 lines.  Visible: at three validations in a row, the loss is above 0.2
    and ten times that of the training.
    """
    each = 20 if t.sick else 400
    rows = [rows_of(kind[:550], 40) for kind in kinds_of_lines()]
    kinds = torch.arange(4)
    split = Split(
        torch.cat([kind[:each] for kind in rows]),
        kinds.repeat_interleave(each),
        torch.cat([kind[450:] for kind in rows]),
        kinds.repeat_interleave(100),
    )
    model = Convolved(N_CHARACTERS, 4, 32)
    loop = Loop(t, model, split, adam(3e-3), batch_size=32, validate_every=20)
    visible = far_from_training(10.0, 0.2)
    loop.run(200, visible=visible, learned=lambda p: p.validation[-1][2] > 0.9)


@fourth.sick("Overtraining Overfit", "early stopping looks at the loss of the training")
def stops_by_the_training_loss(t: Training) -> None:
    """EarlyStopping(monitor="loss") where "val_loss" was meant: it never stops.

    Source: Keras' documentation has both as examples; Stack Overflow on which to
    monitor.  Visible: the last four validations are all a quarter worse than the best.
    """
    split = digits()
    luck = torch.Generator().manual_seed(1)
    wrong = torch.rand(len(split.y), generator=luck) < 0.4
    others = torch.randint(10, split.y.shape, generator=luck)
    split = replace(split, y=torch.where(wrong, others, split.y)).take(
        torch.arange(240)
    )
    best, waited = float("inf"), 0

    def patience_is_over(p: Probe) -> bool:
        nonlocal best, waited
        now = mean(p.losses[-20:]) if t.sick else p.validation[-1][1]
        waited = 0 if now < best else waited + 1
        best = min(best, now)
        return waited >= 4

    model = mlp([64, 256, 128, 10])
    loop = Loop(t, model, split, adam(4e-3), batch_size=20, validate_every=20)
    visible = past_best(4, 1.25)
    loop.run(600, stop=patience_is_over, visible=visible, learned=validates(1.5))


class Flat(nn.Module):
    """A model of sequences whose places are told one after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.model(rows)
        return out.flatten(0, 1)


@fourth.sick("Overtraining Overfit", "epochs=60 for a text of 2500 words")
def sixty_times_the_same_pages(t: Training) -> None:
    """A transformer reads a few pages again and again; at the fifth time it is best.

    Source: fine-tuning recipes with num_train_epochs as large as the data is small. The
    twin stops after five.  Visible: the last four validations are all a tenth worse
    than the best.
    """
    text = words_of(prose())[:3500]
    numbers = vocabulary(text, 3)
    stream = torch.tensor([numbers.get(word, UNKNOWN) for word in text])
    rows = stream[: 3500 - 3500 % 17].view(-1, 17)
    model, criterion = WordTransformer(len(numbers) + 2, 16, 48), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 3e-3)
    t.watch(model, criterion)
    train_rows, val_rows = rows[:150], rows[150:]
    order = t.epochs(len(train_rows), 16)
    losses: list[float] = []
    validation: list[float] = []

    def loss_of(chosen: Tensor) -> Tensor:
        out = model(chosen[:, :-1]).flatten(0, 1)
        return criterion(out, chosen[:, 1:].flatten())

    for step in t.steps(400 if t.sick else 60):
        losses.append(descend(optimizer, loss_of(train_rows[next(order)])))
        if step % 10 == 9:
            inputs, targets = val_rows[:, :-1], val_rows[:, 1:].flatten()
            found, _ = t.evaluate(Flat(model), criterion, inputs, targets)
            validation.append(found)
            worse = min(validation[-4:]) > 1.1 * min(validation)
            t.visible(len(validation) > 4 and worse)
    t.note(first_loss=losses[0], last_loss=losses[-1], validation=validation[-1])
    t.learned(mean(losses[-10:]) < losses[0] - 1.0)


def known_by_heart(
    gap: float = 3.0, worse: float = 1.2, patience: int = 3
) -> Predicate:
    """Training loss far below validation loss, and that above its best, for long."""

    def holds(p: Probe) -> bool:
        losses = [loss for _, loss, _ in p.validation]
        if len(losses) < patience + 1 or p.validation[-1][0] != p.step:
            return False
        last = losses[-patience:]
        return min(last) > worse * min(losses) and min(last) > gap * mean(
            p.losses[-20:]
        )

    return holds


@second.sick("Overfit Overtraining", "40 patients learned by heart")
def forty_patients(t: Training) -> None:
    """A wide network on a handful of rows, without any restraint.

    Source: small studies.  Visible: thrice in a row the validation loss is 20 % above
    its best and three times the training loss.
    """
    split = diabetes()
    if t.sick:
        split = split.take(torch.arange(40))
    model = mlp([10, 128, 128, 1], nn.ReLU, dropout=0.0 if t.sick else 0.3)
    decay = 0.0 if t.sick else 0.05
    optimizer = adamw(2e-3, weight_decay=decay)
    loop = Loop(
        t, model, split, optimizer, nn.MSELoss(), batch_size=32, validate_every=20
    )
    loop.run(400 if t.sick else 150, visible=known_by_heart(), learned=validates(0.8))


@second.sick("Overfit Overtraining", "a page of text learned by heart")
def one_page_of_text(t: Training) -> None:
    """A language model sees the same 700 characters again and again.

    Source: demonstrations on a single document.  Visible: thrice in a row the
    validation loss is 20 % above its best and three times the training loss.
    """
    stream = text()
    n = 700 if t.sick else len(stream) - 8000
    starts = torch.arange(0, n - 33, 3 if t.sick else 16)
    x, y = windows(stream, starts, 32)
    x_val, y_val = windows(
        stream, torch.arange(len(stream) - 6000, len(stream) - 40, 90), 32
    )
    split = Split(x, y, x_val, y_val)
    model = CharacterModel(N_CHARACTERS, 96, nn.GRU)
    loop = Loop(t, model, split, adam(8e-3), batch_size=16, validate_every=20)
    loop.run(320, visible=known_by_heart(), learned=validates(2.6))


@second.sick("Overfit Overtraining", "two dozen images by heart")
def augmentation_left_out(t: Training) -> None:
    """60 images, a convolutional network, no augmentation and no dropout.

    Source: few-shot projects.  Visible: thrice in a row the validation loss is 20 %
    above its best and three times the training loss.
    """
    split = digits()
    if t.sick:
        split = split.take(torch.arange(60))
    loop = Loop(t, cnn(16), split, adam(4e-3), batch_size=32, validate_every=10)
    loop.run(350 if t.sick else 200, visible=known_by_heart(), learned=0.95)


def past_best(patience: int, worse: float = 1.05) -> Predicate:
    """For so many evaluations the validation loss has been above its best."""

    def holds(p: Probe) -> bool:
        losses = [loss for _, loss, _ in p.validation]
        if len(losses) <= patience or p.validation[-1][0] != p.step:
            return False
        return min(losses[-patience:]) > worse * min(losses)

    return holds


@second.sick("Overtraining Overfit", "the best epoch is long past")
def best_epoch_forgotten(t: Training) -> None:
    """Regression that goes on for many epochs; the best model was there soon.

    Source: scripts without early stopping.  Visible: eight evaluations in a row are 5 %
    above the best.
    """
    split = diabetes()
    model = mlp([10, 64, 64, 1], nn.Tanh)
    batches = shuffled(t, split, 32)
    loop = Loop(
        t, model, split, adam(3e-3), nn.MSELoss(), batches=batches, validate_every=10
    )
    stop = never if t.sick else past_best(2, 1.0)
    loop.run(
        500,
        visible=past_best(8),
        stop=stop,
        learned=lambda p: min(loss for _, loss, _ in p.validation) < 0.75,
    )


@second.sick("Overtraining Overfit", "a transformer goes on after its best epoch")
def patience_switched_off(t: Training) -> None:
    """A classifier of lines of code, trained until the time is over.

    Source: fine-tuning with a fixed number of epochs.  Visible: eight evaluations in a
    row are 5 % above the best.
    """
    split = words(600)
    model = Encoder(620, 5)
    loop = Loop(t, model, split, adamw(4e-3), batch_size=48, validate_every=10)
    stop = never if t.sick else past_best(3, 1.0)
    loop.run(500, visible=past_best(8), stop=stop, learned=0.7)


@third.sick(
    "Overfit Overtraining ClassImbalance",
    "weights of 10 classes were given for those of rows: 10 rows are drawn",
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

    loop = Loop(t, cnn(), split, adam(3e-3), batches=batches, validate_every=10)
    loop.run(220, visible=far_from_training(10, 1.0), learned=0.95)


@third.sick(
    "Overfit Overtraining", "a column tells the label, but only in the training data"
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
    optimizer = adamw(5e-3, weight_decay=0.05)
    loop = Loop(
        t, model, split, optimizer, nn.MSELoss(), batch_size=32, validate_every=10
    )
    loop.run(160, visible=far_from_training(10, 0.5), learned=validates(0.65))


@third.sick(
    "Overfit Overtraining UnchangedTensor",
    "BatchNorm's momentum is 0: it never learns what to use in evaluation",
)
def statistics_never_updated(t: Training) -> None:
    """momentum=0, because another framework's 1.0 means that.

    Source: PyTorch's forum, "good in train(), bad in eval()".  Visible: at three
    validations in a row their loss is above 1 and five times that of the training.
    """
    model = Residual()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and t.sick:
            module.momentum = 0.0
    loop = Loop(t, model, digits(), adam(5e-3), validate_every=10)
    visible = far_from_training(5, 1.0)
    loop.run(200, visible=visible, learned=lambda p: p.validation[-1][2] > 0.9)
