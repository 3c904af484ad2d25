"""Parameters that no gradient comes to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    descend,
    mean,
    train,
)
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.probes import lasting, stand, stands
from benchmarks.detection.kit.training import Shadow, Training


class Detached(nn.Module):
    """An encoder and a head, with or without a way back from one to the other."""

    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 32])
        self.head = mlp([32, 32, 10])
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        hidden = hidden.detach() if self.detach else hidden
        return self.head(hidden)


def count(tensor: Tensor | None) -> int:
    """How many elements are not zero."""
    return 0 if tensor is None else int(torch.count_nonzero(tensor))


def without_gradient(names: list[str], patience: int = 10) -> Predicate:
    """Trainable parameters have no gradient, or nothing but zeros, that often."""

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        return all(
            named[name].requires_grad and not count(named[name].grad) for name in names
        )

    return lasting(holds, patience)


@first.sick(
    "MissingGradient", "detach() between encoder and head: the encoder never learns"
)
def detached_encoder(t: Training) -> None:
    """A detach() that was put there for a visualization is left behind.

    Source: PyTorch forum, "Why is my encoder not trained"; Humbatova et al. 2020: wrong
    tensor operations; Karpathy 2019 uses gradients to find such bugs.  Visible: at 10
    steps in a row the encoder's trainable weights have no gradient.
    """
    loop = Loop(t, Detached(t.sick), digits(), adam(3e-3))
    visible = without_gradient(["encoder.0.weight", "encoder.2.weight"])
    loop.run(150, visible=visible, learned=0.93)


class Forgetful(nn.Module):
    """Has a second convolution, which forward may forget."""

    def __init__(self, forget: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(512, 10)
        self.forget = forget

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x.view(-1, 1, 8, 8)))
        if not self.forget:
            x = self.relu(self.second(x))
        return self.head(x.flatten(1))


@first.sick("MissingGradient", "a layer is made and never called")
def layer_never_called(t: Training) -> None:
    """A layer is defined in the constructor and forgotten in forward.

    Source: DistributedDataParallel's find_unused_parameters and the many questions
    about it; Humbatova et al. 2020: missing layer.  Visible: at 10 steps in a row that
    layer's trainable weights have no gradient.
    """
    loop = Loop(t, Forgetful(t.sick), digits(), adam(3e-3))
    visible = without_gradient(["second.weight", "second.bias"])
    loop.run(100, visible=visible, learned=0.9)


class Sharpened(nn.Module):
    """Images are sharpened by learned filters, scaled by hand, and classified."""

    def __init__(self, *, by_numpy: bool) -> None:
        super().__init__()
        self.by_numpy = by_numpy
        self.filters = nn.Conv2d(1, 6, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(6, 12, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(12 * 36, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.filters(images.view(-1, 1, 8, 8))
        if self.by_numpy:
            array = x.detach().numpy()
            x = torch.from_numpy(array / (1 + abs(array).max((1, 2, 3), keepdims=True)))
        else:
            x = x / (1 + x.abs().amax((1, 2, 3), keepdim=True))
        return self.head(self.body(x))


@fourth.sick(
    "MissingGradient UnchangedTensor",
    "x.detach().numpy() in forward: nothing before it gets a gradient",
)
def through_numpy_and_back(t: Training) -> None:
    """An operation is done by NumPy; the error message is silenced by detach().

    Source: "Can't call numpy() on Tensor that requires grad. Use detach()" and what
    people do then.  Visible: after 20 steps the first filters are what they were.
    """
    loop = Loop(t, Sharpened(by_numpy=t.sick), digits(), adam(2e-3), batch_size=32)
    loop.run(150, visible=stands(["filters.weight"], 20), learned=0.85)


class TwoAnswers(nn.Module):
    """Which digit it is, and how much ink there is."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp([64, 64, 48], nn.SiLU)
        self.digit = nn.Linear(48, 10)
        self.ink = nn.Linear(48, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(images).relu()
        return self.digit(x), self.ink(x)


@fourth.sick(
    "MissingGradient UnchangedTensor",
    "a term of the loss is added as .item(): a number has no gradient",
)
def term_added_as_a_number(t: Training) -> None:
    """Loss = classes + 0.5 * ink.item(), to save memory as in the advice on logging.

    Source: PyTorch's FAQ on accumulating history ("use .item()"), in the wrong place.
    Visible: after 20 steps the second head is what it was.
    """
    split = digits()
    model = TwoAnswers()
    classes, ink = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classes, ink)
    optimizer = Adam(model.parameters(), 2e-3)
    began = model.ink.weight.detach().clone()
    of_ink: list[float] = []

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 48)
        digit, said = model(split.x[chosen])
        second = ink(said, split.x[chosen].sum(1, keepdim=True) / 20)
        of_ink.append(float(second.detach()))
        added = second.item() if t.sick else second
        return classes(digit, split.y[chosen]) + 0.5 * added

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=180,
        visible=lambda losses: (
            len(losses) >= 20 and torch.equal(began, model.ink.weight.detach())
        ),
    )
    t.learned(mean(losses[-20:]) < 0.5 and mean(of_ink[-20:]) < 0.05)


class TwoHeads(nn.Module):
    """One trunk; which digit is it, and how much ink does it take?"""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32))
        self.digit = nn.Linear(32, 10)
        self.ink = nn.Linear(32, 1)
        self.cut = cut

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.cut:
            with torch.no_grad():
                x = self.trunk(images)
        else:
            x = self.trunk(images)
        return self.digit(torch.relu(x)), self.ink(torch.relu(x))


def two_losses(t: Training, *, cut: bool, forgotten: bool) -> None:
    """Train a trunk with two heads; both must become good."""
    split = digits()
    ink = split.x.mean(1, keepdim=True)
    ink = (ink - ink.mean()) / ink.std()
    model = TwoHeads(cut=cut)
    optimizer = Adam(model.parameters(), 3e-3)
    names = ["trunk.0.weight", "trunk.2.weight"] if cut or not forgotten else []
    if forgotten or not (cut or forgotten):
        names += ["ink.weight"]
    silent = [without_gradient([name], 20) for name in names]
    probe = Probe(0, model, Shadow(model), split)
    classify, measure = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classify, measure)
    right: list[float] = []
    for step in t.steps(200):
        probe.step = step
        chosen = t.draw(len(split.x), 64)
        digit, amount = model(split.x[chosen])
        loss = classify(digit, split.y[chosen])
        if not forgotten:
            loss = loss + measure(amount, ink[chosen])
        probe.losses.append(descend(optimizer, loss))
        right.append(float((digit.argmax(1) == split.y[chosen]).float().mean()))
        seen = [look(probe) for look in silent]
        t.visible(any(seen))
    t.note(accuracy=mean(right[-20:]), last_loss=mean(probe.losses[-20:]))
    t.learned(mean(right[-20:]) > 0.9 and mean(probe.losses[-20:]) < 0.6)


@second.sick("MissingGradient", "the trunk runs under no_grad")
def trunk_under_no_grad(t: Training) -> None:
    """torch.no_grad() around the features stayed from an experiment.

    Source: feature extraction turned into fine-tuning.  Visible: after 20 steps in
    which the trunk, which requires a gradient, has none.
    """
    two_losses(t, cut=t.sick, forgotten=False)


@second.sick("MissingGradient", "the loss of the second head is not added")
def second_loss_forgotten(t: Training) -> None:
    """Two losses are computed, one is propagated back.

    Source: multi-task scripts; what DDP calls unused parameters.  Visible: after 20
    steps in which the second head, which requires a gradient, has none.
    """
    two_losses(t, cut=False, forgotten=t.sick)


class Pair(nn.Module):
    """One makes images, the other tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(
            nn.Linear(16, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.Sigmoid(),
        )
        self.critic = nn.Sequential(
            nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(64, 1)
        )


@third.sick(
    "MissingGradient UnchangedTensor NotInOptimizer",
    "the generator's loss is taken of detached images",
)
def generator_of_detached_images(t: Training) -> None:
    """detach() was copied with the line of the discriminator.

    Source: PyTorch's forum on DCGAN.  Visible: when in 20 steps the generator has not
    moved.
    """
    split = digits()
    model, criterion = Pair(), nn.BCEWithLogitsLoss()
    makes = Adam(model.maker.parameters(), 2e-3, betas=(0.5, 0.999))
    tells = Adam(model.critic.parameters(), 1e-3, betas=(0.5, 0.999))
    t.watch(model, criterion, optimizer=makes)
    yes, no = torch.ones(64, 1), torch.zeros(64, 1)
    still = stand(20)
    for _ in t.steps(400):
        real = split.x[t.draw(len(split.x), 64)]
        made = model.maker(torch.randn(64, 16))
        tells.zero_grad()
        loss = criterion(model.critic(real), yes)
        loss = loss + criterion(model.critic(made.detach()), no)
        loss.backward()
        tells.step()
        makes.zero_grad()
        criterion(model.critic(made.detach() if t.sick else made), yes).backward()
        makes.step()
        t.visible(still(list(model.maker.parameters())))
    with torch.no_grad():
        made = model.maker(torch.randn(500, 16))
    away = float((made.mean(0) - split.x.mean(0)).abs().mean())
    t.note(away=away)
    t.learned(away < 0.12)
