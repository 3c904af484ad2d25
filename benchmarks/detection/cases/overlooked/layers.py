"""Mistakes in architectures: layers that are missing, or in the wrong place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import diabetes, digits, words
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Net(nn.Module):
    """Three linear layers."""

    def __init__(self, *, activate: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 32)
        self.fc3 = nn.Linear(32, 2)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        if self.activate:
            return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))
        return self.fc3(self.fc2(self.fc1(x)))


@eleventh.silent(
    Cause(
        r"(no|without|missing|lacks?) (an? )?(activation|non.?linear)|linear (map|model"
        r"|function|network) |(model|network) is (affine|linear)|affine"
        r"|linear layers? .*(follow|after|in a row|between)",
        r"activation|relu|non.?linear",
    ),
    "no activation between the linear layers",
)
def no_activation_between(t: Training) -> None:
    """``forward`` calls one linear layer after the other.

    Source: theorangeduck.com/page/neural-network-not-working; asked often by beginners.
    Visible: the output of a sum is the sum of outputs; odd digits are told from even
    ones only as well as a linear model can.
    """
    split = digits()
    y, y_val = split.y % 2, split.y_val % 2
    model, criterion = Net(activate=not t.sick), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(300, len(y), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), y[rows]).backward()
        optimizer.step()
    a, b = split.x_val[:100], split.x_val[100:200]
    bent = in_evaluation(
        model, lambda: model(a + b) - model(a) - model(b) + model(0 * a)
    )
    accuracy = held_out(model, split.x_val, y_val)
    t.note(accuracy=accuracy, bent=float(bent.abs().max()))
    conclude(t, fault=bent.abs().max() < 1e-3, reached=accuracy > 0.945)


@eleventh.silent(
    Cause(
        r"(output|prediction)s? .*(negative|below (0|zero)|clipped|cut|relu|range)"
        r"|(relu|activation) .*(last|output|head|end|final)|(last|final|output) .*relu",
        r"relu|activation|linear output|last layer",
    ),
    "ReLU after the last layer of a regression",
)
def relu_at_the_end(t: Training) -> None:
    """A block of linear layer and ReLU is repeated up to the output.

    Source: a usual question of beginners with Keras and PyTorch regressions.
    Visible: no prediction is negative, though half of the targets are.
    """
    split = diabetes()
    model = mlp([10, 32, 32, 1])
    if t.sick:
        model.append(nn.ReLU())
    with torch.no_grad():
        model[4].bias.fill_(0.2)
    criterion = nn.MSELoss()
    optimizer = Adam(model.parameters(), lr=2e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(250, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    out = in_evaluation(model, lambda: model(split.x))
    explained = 1 - float((out - split.y).pow(2).mean() / split.y.var())
    t.note(explained=explained, least=float(out.min()))
    conclude(t, fault=out.min() >= 0, reached=explained > 0.45)


@eleventh.silent(
    Cause(
        r"dropout .*(logit|output|last|head|after|final)|(logit|output)s? .*(dropout"
        r"|dropped|set to (0|zero)|exactly (0|zero)|zeroed)",
        r"dropout|before the last",
    ),
    "dropout of the logits",
)
def dropout_of_logits(t: Training) -> None:
    """Dropout stands behind the last layer instead of before it.

    Source: asked at Stack Overflow ("where to put dropout"); common in student code.
    Visible: in training half of the logits are exactly 0.
    """
    split = digits()
    hidden, drop, last = nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 10)
    tail = [last, drop] if t.sick else [drop, last]
    model = nn.Sequential(hidden, nn.ReLU(), *tail)
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    zeros = 0.0
    for _, rows in t.batches(250, len(split.x), 64):
        optimizer.zero_grad()
        logits = model(split.x[rows])
        criterion(logits, split.y[rows]).backward()
        optimizer.step()
        zeros = float((logits == 0).float().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, zeros=zeros)
    conclude(t, fault=zeros > 0.3, reached=accuracy > 0.9, harms=False)


class RowReader(nn.Module):
    """Attention over the rows of an image."""

    def __init__(self, *, places: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.pos = nn.Parameter(torch.randn(8, 32) * 0.2) if places else None
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.view(-1, 8, 8))
        if self.pos is not None:
            h = h + self.pos
        return self.fc(self.encoder(h).mean(1))


@eleventh.silent(
    Cause(
        r"position|(order|permut)\w* .*(token|place|row|sequence|input|invarian|no "
        r"effect|ignor)|(token|row|sequence|input)s? .*(any order|order|permut)"
        r"|bag of",
        r"position",
    ),
    "attention without encodings of positions",
)
def attention_without_positions(t: Training) -> None:
    """Nothing tells the transformer which row is the first.

    Source: pytorch.org's tutorial names it; a usual omission in first transformers.
    Visible: rows in any other order give the same output.
    """
    split = digits()
    model, criterion = RowReader(places=not t.sick), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(250, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    upside = split.x_val.view(-1, 8, 8).flip(1).flatten(1)
    moved = in_evaluation(model, lambda: model(upside) - model(split.x_val))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy, moved=float(moved.abs().max()))
    conclude(t, fault=moved.abs().max() < 1e-3, reached=accuracy > 0.85, harms=False)


@eleventh.silent(
    Cause(
        r"(token|word|categor|ids?|ind(ex|ices)|codes?|integer|whole number)\w* .*"
        r"(quantit|numeric|ordinal|as (numbers|floats|features)|embed|one.hot|linear)"
        r"|categorical",
        r"embed|one.hot",
    ),
    "numbers of words are fed as quantities",
)
def ids_as_quantities(t: Training) -> None:
    """Word numbers are made floats and go into a linear layer.

    Source: a usual question of beginners (Stack Overflow, discuss.pytorch.org).
    Visible: inputs are whole numbers up to 300; lines are told apart badly.
    """
    split = words(300)
    if t.sick:
        model = mlp([6, 96, 64, 5])
        x, x_val = split.x.float(), split.x_val.float()
    else:
        model = nn.Sequential(nn.Embedding(302, 16), nn.Flatten(), mlp([96, 64, 5]))
        x, x_val = split.x, split.x_val
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(300, len(x), 64):
        optimizer.zero_grad()
        criterion(model(x[rows]), split.y[rows]).backward()
        optimizer.step()
    accuracy = held_out(model, x_val, split.y_val)
    t.note(accuracy=accuracy)
    fault = x.is_floating_point() and bool((x == x.round()).all())
    conclude(t, fault=fault, reached=accuracy > 0.55)
