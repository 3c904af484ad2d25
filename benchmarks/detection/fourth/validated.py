"""What only the validation tells: learned by heart, for too long, or confused."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import N_CHARACTERS, Split, digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import mistakes_for
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import (
    UNKNOWN,
    characters,
    flowers,
    kinds_of_lines,
    patients,
    prose,
    vocabulary,
    words_of,
)
from benchmarks.detection.fourth.nets import Convolved, WordTransformer
from benchmarks.detection.fourth.sights import far_behind, past_its_best
from benchmarks.detection.third.views import epoch, mean, since


@sick(named_by={"Overfit"}, diagnosis="all products of columns: more of them than rows")
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.MSELoss(),
        n_steps=360,
        batch_size=32,
        validate_every=10,
        visible=far_behind(3.0, 0.7),
        learned=lambda p: p.validation[-1][1] < 0.7,
    )


@sick(named_by={"Overfit"}, diagnosis="80 lines were labelled, and are known by heart")
def eighty_labelled_lines(t: Training) -> None:
    """The first labels are in, and the network is trained on them until it is perfect.

    Source: every project that starts to label; Zhang 2017 on fitting by heart.  The
    twin has 1600 lines.  Visible: at three validations in a row, the loss is above 0.2
    and ten times that of the training.
    """
    each = 20 if t.sick else 400
    rows = [characters(kind[:550], 40) for kind in kinds_of_lines()]
    kinds = torch.arange(4)
    split = Split(
        torch.cat([kind[:each] for kind in rows]),
        kinds.repeat_interleave(each),
        torch.cat([kind[450:] for kind in rows]),
        kinds.repeat_interleave(100),
    )
    model = Convolved(N_CHARACTERS, 4, 32)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=200,
        batch_size=32,
        validate_every=20,
        visible=far_behind(10.0, 0.2),
        learned=lambda p: p.validation[-1][2] > 0.9,
    )


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="early stopping looks at the loss of the training",
)
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 4e-3),
        n_steps=600,
        batch_size=20,
        validate_every=20,
        stop=patience_is_over,
        visible=past_its_best(0.25, 4),
        learned=lambda p: p.validation[-1][1] < 1.5,
    )


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="epochs=60 for a text of 2500 words",
)
def sixty_times_the_same_pages(t: Training) -> None:
    """A transformer reads a few pages again and again; at the fifth time it is best.

    Source: fine-tuning recipes with num_train_epochs as large as the data is small.
    The twin stops after five.  Visible: the last four validations are all a tenth worse
    than the best.
    """
    text = words_of(prose())[:3500]
    numbers = vocabulary(text, 3)
    stream = torch.tensor([numbers.get(word, UNKNOWN) for word in text])
    rows = stream[: 3500 - 3500 % 17].view(-1, 17)
    model, criterion = WordTransformer(len(numbers) + 2, 16, 48), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    t.watch(model, criterion)
    train_rows, val_rows = rows[:150], rows[150:]
    order = epoch(t, len(train_rows), 16)
    losses: list[float] = []
    validation: list[float] = []

    def loss_of(chosen: Tensor) -> Tensor:
        out = model(chosen[:, :-1]).flatten(0, 1)
        loss: Tensor = criterion(out, chosen[:, 1:].flatten())
        return loss

    for step in t.steps(400 if t.sick else 60):
        optimizer.zero_grad()
        loss = loss_of(train_rows[next(order)])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 10 == 9:
            inputs, targets = val_rows[:, :-1], val_rows[:, 1:].flatten()
            found, _ = t.evaluate(Flat(model), criterion, inputs, targets)
            validation.append(found)
            worse = min(validation[-4:]) > 1.1 * min(validation)
            t.visible(len(validation) > 4 and worse)
    t.note(first_loss=losses[0], last_loss=losses[-1], validation=validation[-1])
    t.learned(mean(losses[-10:]) < losses[0] - 1.0)


class Flat(nn.Module):
    """A model of sequences whose places are told one after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.model(rows)
        return out.flatten(0, 1)


@sick(
    named_by={"Confusion", "Underfitting"},
    diagnosis="only the sepals are read: two of three irises look the same",
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-2),
        n_steps=200,
        batch_size=16,
        validate_every=10,
        visible=since(100, mistakes_for((1, 2), 0.2, 0.85, both_ways=True)),
        learned=0.93,
    )


@sick(
    named_by={"Confusion"},
    diagnosis="the validation folder has no class 2, and all others move up",
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
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 3e-3),
        n_steps=200,
        batch_size=50,
        validate_every=20,
        visible=wrong_above,
        learned=0.95,
    )
