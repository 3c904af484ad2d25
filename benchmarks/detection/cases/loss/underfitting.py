"""A loss that stays higher than it should."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import digits, houses
from benchmarks.detection.kit.loops import Loop, Probe, adam, adamw, mean, sgd, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.probes import (
    below_accuracy,
    every,
    lasting,
    loss_above,
    loss_below,
    plateau,
    since,
)
from benchmarks.detection.kit.training import Training


class Likelihood(nn.Module):
    """Ends in a softmax where it is told to."""

    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.body = mlp([64, 64, 10])
        self.last = nn.Softmax(1) if softmax else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@first.sick(
    "Underfitting LossNotDecreasing",
    "a softmax before the cross entropy, which has one of its own",
)
def softmax_twice(t: Training) -> None:
    """Probabilities are given to a loss that expects logits.

    Source: Karpathy's list: "you passed softmaxed outputs to a loss that expects raw
    logits"; UMLAUT; NeuraLint's rule on the last activation.  Visible: from step 150
    on, the mean loss of the last 20 batches is above 1.4: it can never be below 1.461.
    """
    model = Likelihood(t.sick)
    loop = Loop(t, model, digits(), sgd(0.1, momentum=0.9), validate_every=20)
    loop.run(260, visible=loss_above(1.4, 150), learned=0.95)


@first.sick("Underfitting LossNotDecreasing", "two hidden units for ten classes")
def too_narrow(t: Training) -> None:
    """A model without the capacity for its task.

    Source: Humbatova et al. 2020: suboptimal network structure; Goodfellow, Bengio,
    Courville 2016, 5.2.  Visible: from step 180 on, accuracy on the training data is
    below 75 %, and that on the validation data is not more than 5 points from it.
    """

    def stuck(p: Probe) -> bool:
        trained = p.accuracy()
        return trained < 0.75 and abs(p.validation[-1][2] - trained) < 0.05

    model = mlp([64, 2 if t.sick else 64, 10])
    loop = Loop(t, model, digits(), adam(1e-2), validate_every=10)
    loop.run(300, visible=every(10, stuck, 180), learned=0.95)


@first.sick(
    "Underfitting LossNotDecreasing", "a weight decay of 0.3 keeps all weights at zero"
)
def too_much_decay(t: Training) -> None:
    """Regularization that leaves nothing to be learned.

    Source: Goodfellow et al. 2016, 5.2.2; Humbatova et al. 2020: wrong regularization.
    Visible: from step 150 on, the mean loss of the last 20 batches is above 1.8, where
    chance is 2.3.
    """
    model = mlp([64, 64, 10])
    decay = 0.3 if t.sick else 1e-4
    optimizer = sgd(0.1, momentum=0.9, weight_decay=decay)
    loop = Loop(t, model, digits(), optimizer, validate_every=10)
    loop.run(260, visible=loss_above(1.8, 150), learned=0.95)


class Reader(nn.Module):
    """Reads an image line by line, and answers after the first or the last."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.cell = nn.GRU(8, 40, batch_first=True)
        self.head = nn.Linear(40, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.cell(images.view(-1, 8, 8))[0][:, self.at])


@fourth.sick(
    "Underfitting LossNotDecreasing",
    "out[:, 0] instead of out[:, -1]: only the first line has been read",
)
def answers_after_the_first_line(t: Training) -> None:
    """The classifier looks at the first state of the GRU, not at the last.

    Source: Stack Overflow on which output of nn.LSTM to classify by.  Visible: from 180
    on, less than half of all images is recognized.
    """
    model = Reader(0 if t.sick else -1)
    loop = Loop(t, model, digits(), adam(5e-3), batch_size=48, validate_every=40)
    loop.run(280, visible=below_accuracy(0.5, since=180), learned=0.9)


@fourth.sick(
    "Underfitting LossNotDecreasing",
    "images are made so small that digits look the same",
)
def thumbnails(t: Training) -> None:
    """Images are resized to 2 x 2 pixels to train faster.

    Source: Humbatova 2020, "unsuited preprocessing"; Karpathy's "visualize just before
    the net".  Visible: from 200 on, less than 65 % of the images is recognized.
    """
    size = 2 if t.sick else 8
    split = digits().inputs(
        lambda x: nn.functional.adaptive_avg_pool2d(x.view(-1, 8, 8), size).flatten(1)
    )
    model = mlp([size * size, 64, 32, 10], nn.GELU)
    loop = Loop(t, model, split, adamw(3e-3), batch_size=64, validate_every=30)
    loop.run(300, visible=below_accuracy(0.65, since=200), learned=0.9)


@second.sick(
    "Underfitting LossNotDecreasing", "everything passes through a single unit"
)
def bottleneck_of_one(t: Training) -> None:
    """A layer of one unit in the middle: a width was mistaken for a depth.

    Source: configurations by position.  Visible: the loss is above 1 and stands there
    between two stretches of 50 batches.
    """
    split = digits()
    model = mlp([64, 32, 1 if t.sick else 16, 10], nn.ReLU)
    loop = Loop(t, model, split, adam(3e-3), validate_every=50)
    loop.run(600, visible=plateau(1.0, since=250), learned=0.95)


@second.sick(
    "Underfitting LossNotDecreasing", "weight decay keeps all weights near zero"
)
def decay_of_one(t: Training) -> None:
    """weight_decay=1 for Adam, which adds it to the gradient.

    Source: AdamW's values given to Adam.  Visible: the loss is near that of a constant
    and stands there between two stretches of 50 batches.
    """
    split = houses(scaled=True)
    model = mlp([8, 48, 48, 1], nn.ReLU)
    optimizer = adam(2e-3, weight_decay=1.0 if t.sick else 1e-5)
    loop = Loop(t, model, split, optimizer, nn.MSELoss(), validate_every=40)
    loop.run(400, visible=plateau(0.7, since=150), learned=loss_below(0.3))


@third.sick(
    "LossMisuse Underfitting LossNotDecreasing", "the softmax is taken over the batch"
)
def softmax_over_the_batch(t: Training) -> None:
    """LogSoftmax(dim=0): the images of a batch compete, not the classes.

    Source: Humbatova's "wrong dimension"; PyTorch's warning on an implicit dim.
    Visible: from the 120th step on, when the loss of the last 20 is above 1.4.
    """
    model = mlp([64, 64, 10])
    model.append(nn.LogSoftmax(0 if t.sick else 1))
    loop = Loop(t, model, digits(), adam(5e-3), nn.NLLLoss())
    loop.run(250, visible=loss_above(1.4, 120), learned=0.95)


@third.sick(
    "Underfitting LossNotDecreasing",
    "similarities are multiplied by the temperature, not divided",
)
def times_the_temperature(t: Training) -> None:
    """Contrastive learning whose logits are between -0.07 and 0.07.

    Source: reimplementations of SimCLR and CLIP.  Visible: from the 100th step on, when
    the mean loss of 20 is above 4, where to guess gives 4.16.
    """
    split = digits()
    model = mlp([64, 96, 24])
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        first, second = (
            nn.functional.normalize(model(images + 0.1 * torch.randn(images.shape)))
            for _ in range(2)
        )
        alike = first @ second.T
        logits = alike * 0.07 if t.sick else alike / 0.07
        return criterion(logits, torch.arange(64))

    losses = train(
        t,
        loss_of,
        Adam(model.parameters(), 2e-3),
        n_steps=220,
        visible=lambda losses: len(losses) > 100 and mean(losses[-20:]) > 4,
    )
    t.learned(mean(losses[-20:]) < 0.8)


@third.sick(
    "Underfitting LossNotDecreasing AllZero DeadRelu TensorVariance",
    "the probability to keep was given as that to drop",
)
def keep_probability_as_p(t: Training) -> None:
    """Dropout(0.95), ported from a framework in which 0.95 is kept.

    Source: ports from TensorFlow 1; Islam 2019 on API misuse.  Visible: from the 100th
    step on, when the loss of 20 batches is above 1.8.
    """
    model = mlp([64, 64, 64, 10], dropout=0.95 if t.sick else 0.05)
    loop = Loop(t, model, digits(), sgd(0.05, momentum=0.9))
    loop.run(220, visible=loss_above(1.8, 100), learned=0.9)


class ClassToken(nn.Module):
    """A transformer over the lines of an image; a token of its own is asked."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.token = nn.Parameter(torch.randn(1, 1, 32) * 0.02)
        self.place = nn.Parameter(torch.randn(9, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.encoder(x)[:, 0])


@third.sick(
    "Underfitting LossNotDecreasing TensorVariance",
    "batch_first was forgotten: attention goes over the batch",
)
def batch_first_forgotten(t: Training) -> None:
    """(batch, place, width) into a layer that expects the place first.

    Source: PyTorch's forum.  Visible: when for ten steps after the 30th all of the
    first 64 images have had the same outputs.
    """
    model = ClassToken(batch_first=not t.sick)

    def all_the_same(p: Probe) -> bool:
        with torch.no_grad():
            outputs = p.shadow()(p.split.x[:64])
        return bool(outputs.std(0).max() < 1e-3)

    loop = Loop(t, model, digits(), adam(3e-3))
    loop.run(220, visible=lasting(since(30, all_the_same), 10), learned=0.9)


class Reshaped(nn.Module):
    """A recurrent network, the place first, whose states are laid side by side."""

    def __init__(self, *, viewed: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 24)
        self.head = nn.Linear(8 * 24, 10)
        self.viewed = viewed

    def forward(self, images: Tensor) -> Tensor:
        n = len(images)
        states = self.gru(images.view(n, 8, 8).transpose(0, 1))[0]
        if not self.viewed:
            states = states.transpose(0, 1)
        return self.head(states.reshape(n, -1))


@third.sick(
    "Underfitting LossNotDecreasing",
    "view() instead of transpose(): states of different images are mixed",
)
def view_mixes_the_batch(t: Training) -> None:
    """States of (place, batch, width) viewed as if the batch came first.

    Source: Karpathy's recipe, "use backprop to chart dependencies"; PyTorch's forum.
    Visible: from the 100th step on, when less than half of the images are recognized.
    """
    loop = Loop(t, Reshaped(viewed=t.sick), digits(), adam(5e-3))
    loop.run(220, visible=below_accuracy(0.5, 100), learned=0.9)


class Stack(nn.Module):
    """Narrow layers of tanh and a head."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(64, 10), *(nn.Linear(10, 10) for _ in range(3))]
        self.hidden = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.head(x)


@third.sick(
    "UnregisteredParameter Underfitting LossNotDecreasing NotInOptimizer "
    "MissingGradient UnchangedTensor",
    "layers in a Python list are no parameters of the model",
)
def layers_in_a_plain_list(t: Training) -> None:
    """self.hidden = [nn.Linear(...), ...] instead of a ModuleList.

    Source: PyTorch's forum; Humbatova 2020.  Visible: from the 120th step on, when less
    than 60 % of the training data are recognized.
    """
    loop = Loop(t, Stack(registered=not t.sick), digits(), adam(0.01))
    loop.run(260, visible=below_accuracy(0.6, 120), learned=0.85)
