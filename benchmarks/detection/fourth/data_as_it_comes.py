"""The data are handed to the model as somebody found them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import N_CHARACTERS, Split, breast_cancer, digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import (
    PAD,
    UNKNOWN,
    characters,
    kinds_of_lines,
    patches,
    patients,
    prose,
    vocabulary,
    words_of,
)
from benchmarks.detection.fourth.nets import Convolved, NextWord, Pooled
from benchmarks.detection.fourth.sights import Noted, explains
from benchmarks.detection.third.views import mean, train

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@sick(named_by={"ClassImbalance"}, diagnosis="one part in a hundred is defective")
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        nn.BCEWithLogitsLoss(),
        n_steps=160,
        batches=batches,
        visible=batches.after(20, lambda _, y: y.mean() < 0.02),
        learned=lambda p: p.accuracy() > 0.95,
    )


@sick(named_by={"ClassImbalance"}, diagnosis="kinds of text as frequent as they are")
def lines_as_they_are_found(t: Training) -> None:
    """Lines are scraped and labelled; one kind is a hundred times rarer than another.

    Source: ticket and mail sorting, where the queue of complaints is small; Buda et
    al. 2018.  Visible: of 1000 labels, less than one in 40 is of the rarest kind.
    """
    of = kinds_of_lines()
    counts = (1500, 900, 60, 20) if t.sick else (400, 400, 400, 400)
    lines = [line for kind, n in zip(of, counts, strict=True) for line in kind[:n]]
    labels = [k for k, n in enumerate(counts) for _ in range(min(n, len(of[k])))]
    rows = characters(lines, 48)
    targets = torch.tensor(labels)
    split = Split(rows, targets, rows[::7], targets[::7])
    batches = Noted(t, split, 48)
    model = Convolved(N_CHARACTERS, 4)
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 3e-3),
        n_steps=180,
        batches=batches,
        visible=batches.after(21, lambda _, y: (y == 3).float().mean() < 0.025),
        learned=0.9,
        validate_every=60,
    )


@sick(
    named_by={"NotNormalizedData"},
    diagnosis="ImageNet's mean is taken from bytes that were not divided by 255",
)
def bytes_minus_imagenet(t: Training) -> None:
    """PILToTensor instead of ToTensor before Normalize(mean, std): values of hundreds.

    Source: PyTorch's forum and torchvision's note that ToTensor scales and PILToTensor
    does not.  Visible: the inputs of 20 batches are 100 or more on average.
    """
    mean_of = torch.tensor(IMAGENET_MEAN)[:, None, None]
    deviation = torch.tensor(IMAGENET_DEVIATION)[:, None, None]
    scale = 1.0 if t.sick else 255.0
    split = patches().inputs(lambda x: (x / scale - mean_of) / deviation)
    batches = Noted(t, split, 32)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 2),
    )
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05),
        n_steps=150,
        batches=batches,
        visible=batches.after(20, lambda x, _: x.mean() > 100),
        learned=0.8,
    )


@sick(named_by={"NotNormalizedData"}, diagnosis="columns in years, mmHg and mg/dl")
def measurements_in_their_units(t: Training) -> None:
    """A table goes into the network as the clinic exported it.

    Source: Zhang 2018 and Humbatova 2020, "missing preprocessing"; scikit-learn's
    example on the importance of feature scaling.  Visible: in 20 batches the mean of a
    column is more than 100 times the deviation of another.
    """
    split = patients()
    if not t.sick:
        middle, deviation = split.x.mean(0), split.x.std(0)
        split = split.inputs(lambda x: (x - middle) / deviation)
    batches = Noted(t, split, 16)
    model = mlp([10, 32, 32, 1], nn.SiLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        nn.SmoothL1Loss(),
        n_steps=200,
        batches=batches,
        visible=batches.after(20, lambda x, _: x.mean(0).max() > 100 * x.std(0).min()),
        learned=explains(0.4),
    )


@sick(
    named_by={"NotNormalizedData"},
    diagnosis="the number of the record was left in the table as a column",
)
def record_number_as_a_column(t: Training) -> None:
    """Thirty columns are standardized by name; the id, not in the list, stays as it is.

    Source: Kaggle's copies of the breast cancer data, whose first column is an id of
    842302 and more.  Visible: in 20 batches a column is 100,000 on average.
    """
    split = breast_cancer()
    if t.sick:
        number = 842302.0 + 97.0 * torch.arange(len(split.x))[:, None]
        later = 950000.0 + 97.0 * torch.arange(len(split.x_val))[:, None]
        split = replace(
            split,
            x=torch.cat([number, split.x], 1),
            x_val=torch.cat([later, split.x_val], 1),
        )
    batches = Noted(t, split, 24)
    model = mlp([split.x.shape[1], 40, 2], nn.GELU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-3),
        n_steps=180,
        batches=batches,
        visible=batches.after(20, lambda x, _: x.mean(0).max() > 1e5),
        learned=0.95,
        validate_every=36,
    )


def shares(seen: list[Tensor], token: int) -> float:
    """How much of what the model was given is that token."""
    return mean([float((rows == token).float().mean()) for rows in seen])


@sick(
    named_by={"NLPSequenceRatio"},
    diagnosis='short lines are padded to 128 words: padding="max_length"',
)
def padded_by_the_tokenizer(t: Training) -> None:
    """tokenizer(text, padding="max_length", max_length=128) for lines of ten words.

    Source: the example that everybody copies; Hugging Face's page on padding says what
    it costs.  The twin groups by length and pads to the longest of a batch.  Visible:
    more than 70 % of the tokens of the first 20 batches are padding.
    """
    lines = [(words_of(s), k) for k in (0, 1) for s in kinds_of_lines()[k][:600]]
    numbers = vocabulary([w for line, _ in lines for w in line], 2)
    lines.sort(key=lambda pair: len(pair[0]))
    groups = [lines[i : i + 32] for i in range(0, len(lines), 32)]
    model, criterion = Pooled(len(numbers) + 2, 2), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    seen: list[Tensor] = []
    rights: list[float] = []

    def loss_of(_: int) -> Tensor:
        if t.sick:
            group = [lines[int(i)] for i in t.draw(len(lines), 32)]
        else:
            group = groups[int(t.draw(len(groups), 1))]
        longest = 128 if t.sick else max(len(line) for line, _ in group)
        rows = torch.full((len(group), longest), PAD)
        for row, (line, _) in zip(rows, group, strict=True):
            found = [numbers.get(word, UNKNOWN) for word in line][:longest]
            row[: len(found)] = torch.tensor(found)
        seen.append(rows)
        wanted = torch.tensor([k for _, k in group])
        outputs = model(rows)
        rights.append(float((outputs.argmax(1) == wanted).float().mean()))
        loss: Tensor = criterion(outputs, wanted)
        return loss

    train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=150,
        visible=lambda losses: len(losses) >= 20 and shares(seen[:20], PAD) > 0.7,
    )
    t.note(right=mean(rights[-30:]))
    t.learned(mean(rights[-30:]) > 0.85)


@sick(
    named_by={"NLPSequenceRatio"},
    diagnosis="words must occur 3000 times: the rest is unknown",
)
def rare_words_made_unknown(t: Training) -> None:
    """build_vocab(min_freq=3000): a limit of a larger corpus; most words are <unk>.

    Source: torchtext's min_freq in tutorials on language models.  Visible: more than
    half of the tokens of the first 20 batches are unknown.
    """
    text = words_of(prose())
    numbers = vocabulary(text, 3000 if t.sick else 12)
    stream = torch.tensor([numbers.get(word, UNKNOWN) for word in text])
    model, criterion = NextWord(len(numbers) + 2), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    seen: list[Tensor] = []

    def loss_of(_: int) -> Tensor:
        at = t.draw(len(stream) - 21, 16)[:, None] + torch.arange(20)
        seen.append(stream[at])
        loss: Tensor = criterion(model(stream[at]).transpose(1, 2), stream[at + 1])
        return loss

    losses = train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 4e-3),
        n_steps=140,
        visible=lambda losses: len(losses) >= 20 and shares(seen[:20], UNKNOWN) > 0.5,
    )
    t.learned(mean(losses[-20:]) < losses[0] - 1.5)
