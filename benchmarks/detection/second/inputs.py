"""What goes into the model is wrong."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import N_CHARACTERS, breast_cancer, digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import Residual, mlp
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.looks import after, mean, rare_class
from benchmarks.detection.second.nets import Encoder, Lines, colours
from benchmarks.detection.second.parts import (
    epochs,
    houses,
    lines,
    patches,
    thinned,
    words,
)


@sick(named_by={"ClassImbalance"}, diagnosis="one tumour in thirty is malignant")
def malignant_ones_left_out(t: Training) -> None:
    """The archive keeps few malignant cases, and nobody weighs them.

    Source: every tutorial on fraud and screening data.  Visible: when an epoch of
    labels has been seen, one class has less than a fifth of an even share.
    """
    split = thinned(breast_cancer(), [0], 0.07 if t.sick else 1.0)
    model = mlp([30, 32, 16, 2], nn.SiLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=160,
        batches=epochs(t, split, 16),
        visible=rare_class(0.2, len(split.x) // 16),
        learned=0.95,
    )


@sick(named_by={"ClassImbalance"}, diagnosis="three digits of ten are hardly there")
def rare_digits(t: Training) -> None:
    """Some forms were scanned rarely; a residual network learns the others.

    Source: long-tailed recognition (Cui et al. 2019).  Visible: after an epoch, a class
    has less than a fifth of an even share.
    """
    split = thinned(digits(), [3, 8, 9], 0.05 if t.sick else 1.0)
    model = Residual(8, 1)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
        n_steps=140,
        batches=epochs(t, split, 32),
        visible=rare_class(0.2, len(split.x) // 32),
        learned=0.9,
    )


@sick(named_by={"ClassImbalance"}, diagnosis="the sampler prefers the frequent class")
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

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 4e-3),
        n_steps=260,
        batches=batch,
        visible=rare,
        learned=0.6,
    )


@sick(named_by={"NotNormalizedData"}, diagnosis="pixels from 0 to 255")
def pixels_as_bytes(t: Training) -> None:
    """ToTensor was replaced by from_numpy(...).float(): nothing divides by 255.

    Source: the forum, each week.  Visible: ten batches of pixels with a mean above 10.
    """
    split = patches()
    if not t.sick:
        split = split.inputs(lambda x: (x - 127.5) / 70.0)
    model = colours()
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 2e-3),
        n_steps=150,
        batch_size=32,
        visible=after(10, lambda p: bool(p.split.x.mean().abs() > 10)),
        learned=0.8,
    )


@sick(named_by={"NotNormalizedData"}, diagnosis="columns and prices in their units")
def prices_in_dollars(t: Training) -> None:
    """Regression on columns of the scales of 1 to 5000, of prices in dollars.

    Source: scikit-learn's California housing in any first notebook.  Visible: ten
    batches, columns whose means differ by a factor of a thousand.
    """
    split = houses(scaled=not t.sick)
    model = mlp([8, 64, 32, 1], nn.GELU)

    def scales(p: Probe) -> bool:
        means = p.split.x.mean(0).abs()
        return bool(means.max() > 100 and p.split.y.abs().mean() > 1000)

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.SmoothL1Loss(),
        n_steps=250,
        visible=after(10, scales),
        learned=lambda p: mean(p.losses[-20:]) < 0.25,
    )


@sick(
    named_by={"NotNormalizedData", "TensorVariance"},
    diagnosis="images are divided by 255 twice",
)
def divided_twice(t: Training) -> None:
    """The loader gives 0 to 1 already, and the transform divides again.

    Source: torchvision's ToTensor followed by a scaling of one's own.  Visible: ten
    batches whose largest pixel is below 0.01.
    """
    split = digits()
    if t.sick:
        split = split.inputs(lambda x: x / 255.0)
    else:
        split = split.inputs(lambda x: (x - 0.305) / 0.376)
    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=150,
        visible=after(10, lambda p: bool(p.split.x.abs().max() < 0.01)),
        learned=0.9,
    )


@sick(
    named_by={"NLPSequenceRatio"}, diagnosis="lines padded to four times their length"
)
def padded_to_the_longest(t: Training) -> None:
    """padding="max_length" with the model's 160 places, for lines of 30 characters.

    Source: tokenizers' default examples.  Visible: in ten batches, more than three
    quarters of the tokens are padding.
    """
    split = lines(160 if t.sick else 24)
    model = Lines(N_CHARACTERS, 5)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=200,
        batch_size=32,
        visible=after(10, lambda p: bool((p.split.x == 0).float().mean() > 0.75)),
        learned=0.6,
    )


@sick(named_by={"NLPSequenceRatio"}, diagnosis="nearly every word is unknown")
def vocabulary_of_another_text(t: Training) -> None:
    """A vocabulary of 12 words: the file of the vocabulary was cut off.

    Source: a lower-cased vocabulary used on text as it is, and the like.  Visible: in
    ten batches, more than three quarters of the words are the unknown one.
    """
    split = words(12 if t.sick else 600)

    def unknown(p: Probe) -> bool:
        there = p.split.x[p.split.x != 0]
        return bool((there == 1).float().mean() > 0.7)

    model = Encoder(620, 5)
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 2e-3),
        n_steps=200,
        batch_size=48,
        visible=after(10, unknown),
        learned=0.7,
    )


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="20 000 rows for less than a hundred characters",
)
def vocabulary_of_a_large_model(t: Training) -> None:
    """The embedding was sized for a subword tokenizer; the data is characters.

    Source: configurations copied from a pretrained model.  Visible: after 60 batches,
    nine rows of ten have never had an input.
    """
    split = lines()
    model = Encoder(20_000 if t.sick else 100, 5, width=16)
    n_rows = model.embedding.num_embeddings

    def unused(p: Probe) -> bool:
        return len(torch.unique(p.split.x)) < 0.1 * n_rows

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=150,
        batch_size=32,
        visible=after(60, unused),
        learned=0.55,
    )


@sick(
    named_by={"DeadEmbedding", "NLPSequenceRatio", "TensorVariance"},
    diagnosis="all characters fall on a handful of numbers",
)
def numbers_cut_to_a_few(t: Training) -> None:
    """Ids are divided where they should be looked up: 98 characters become 4.

    Source: a tokenizer's ids remapped for a smaller vocabulary.  Visible: after 60
    batches, nine rows of ten have never had an input.
    """
    split = lines()
    if t.sick:
        split = split.inputs(lambda x: torch.div(x, 26, rounding_mode="floor") + 1)
    model = Lines(N_CHARACTERS, 5)

    def unused(p: Probe) -> bool:
        return len(torch.unique(p.split.x)) < 0.1 * N_CHARACTERS

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=220,
        batch_size=32,
        visible=after(60, unused),
        learned=0.6,
    )


@sick(
    named_by={"AllZero", "TensorVariance", "NotNormalizedData"},
    diagnosis="integer division makes every image black",
)
def black_images(t: Training) -> None:
    """uint8 images are divided by 17 with //.

    Source: NumPy's // for /.  Visible: ten batches without one pixel that is not 0.
    """
    split = digits()
    if t.sick:
        split = split.inputs(lambda x: torch.div(x * 16, 17, rounding_mode="floor"))
    model = Residual(8, 1)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=120,
        batch_size=32,
        visible=after(10, lambda p: not bool(p.split.x.count_nonzero())),
        learned=0.9,
    )
