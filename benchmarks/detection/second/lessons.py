"""The model learns what it should not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    Split,
    diabetes,
    digits,
    text,
    windows,
)
from benchmarks.detection.corpus.loops import fit, never
from benchmarks.detection.corpus.models import (
    CharacterModel,
    cnn,
    mlp,
)
from benchmarks.detection.corpus.models import Residual as ResNet
from benchmarks.detection.corpus.probes import every, mistakes_for
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.looks import (
    by_heart,
    past_best,
)
from benchmarks.detection.second.nets import Encoder
from benchmarks.detection.second.parts import epochs, words


@sick(named_by={"Overfit", "Overtraining"}, diagnosis="40 patients learned by heart")
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
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=decay),
        nn.MSELoss(),
        n_steps=400 if t.sick else 150,
        batch_size=32,
        validate_every=20,
        visible=by_heart(),
        learned=lambda p: p.validation[-1][1] < 0.8,
    )


@sick(named_by={"Overfit", "Overtraining"}, diagnosis="a page of text learned by heart")
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 8e-3),
        n_steps=320,
        batch_size=16,
        validate_every=20,
        visible=by_heart(),
        learned=lambda p: p.validation[-1][1] < 2.6,
    )


@sick(named_by={"Overfit", "Overtraining"}, diagnosis="two dozen images by heart")
def augmentation_left_out(t: Training) -> None:
    """60 images, a convolutional network, no augmentation and no dropout.

    Source: few-shot projects.  Visible: thrice in a row the validation loss is 20 %
    above its best and three times the training loss.
    """
    split = digits()
    if t.sick:
        split = split.take(torch.arange(60))
    model = cnn(16)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 4e-3),
        n_steps=350 if t.sick else 200,
        batch_size=32,
        validate_every=10,
        visible=by_heart(),
        learned=0.95,
    )


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="the best epoch is long past",
)
def best_epoch_forgotten(t: Training) -> None:
    """Regression that goes on for many epochs; the best model was there soon.

    Source: scripts without early stopping.  Visible: eight evaluations in a row are 5 %
    above the best.
    """
    split = diabetes()
    model = mlp([10, 64, 64, 1], nn.Tanh)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.MSELoss(),
        n_steps=500,
        batches=epochs(t, split, 32),
        validate_every=10,
        visible=past_best(8),
        stop=never if t.sick else past_best(2, 1.0),
        learned=lambda p: min(loss for _, loss, _ in p.validation) < 0.75,
    )


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="a transformer goes on after its best epoch",
)
def patience_switched_off(t: Training) -> None:
    """A classifier of lines of code, trained until the time is over.

    Source: fine-tuning with a fixed number of epochs.  Visible: eight evaluations in a
    row are 5 % above the best.
    """
    split = words(600)
    model = Encoder(620, 5)
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 4e-3),
        n_steps=500,
        batch_size=48,
        validate_every=10,
        visible=past_best(8),
        stop=never if t.sick else past_best(3, 1.0),
        learned=0.7,
    )


@sick(named_by={"Confusion"}, diagnosis="most threes were labelled as eights")
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
    model = cnn()
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=400,
        visible=every(10, mistakes_for((3, 8), 0.5, 0.9), 50),
        learned=0.95,
    )


@sick(named_by={"Confusion"}, diagnosis="two annotators disagree on two classes")
def annotators_disagree(t: Training) -> None:
    """Labels 4 and 7 were given by guess; the others rightly.

    Source: crowd labels.  Visible: when, of validation data labelled like that, a
    third of both is taken for the other and 90 % of the rest is known.
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
    model = ResNet(8, 1)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.02, momentum=0.9),
        n_steps=300,
        batches=epochs(t, split, 64),
        visible=every(10, mistakes_for((4, 7), 0.3, 0.9, both_ways=True), 50),
        learned=0.95,
    )
