"""Gradients that do not come through, or come a thousandfold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import loss_above
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import mean, stand, train


@sick(
    named_by={
        "VanishingGradient",
        "LossNotDecreasing",
        "Underfitting",
        "WeightUpdateRatio",
        "UnchangedTensor",
    },
    diagnosis="all weights are clamped to 0.01 after each step, as those of a critic",
)
def weights_clamped_as_in_wgan(t: Training) -> None:
    """For p in parameters(): p.data.clamp_(-0.01, 0.01), left from another project.

    Source: code of Wasserstein GANs, reused.  Visible: from the 80th step on, when the
    loss of 20 batches is above 2.2.
    """
    model = mlp([64, 48, 48, 10])
    bound = 0.01 if t.sick else 1.0

    def clamp(p: Probe) -> bool:
        for weight in p.model.parameters():
            weight.data.clamp_(-bound, bound)
        return high(p)

    high = loss_above(2.2, 80)
    fit(
        t,
        model,
        digits(),
        torch.optim.RMSprop(model.parameters(), 1e-3),
        n_steps=220,
        visible=clamp,
        learned=0.9,
    )


class Rounded(nn.Module):
    """24 bits for an image."""

    def __init__(self, *, straight: bool) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 24])
        self.squash = nn.Sigmoid()
        self.decoder = mlp([24, 64, 64])
        self.straight = straight

    def forward(self, images: Tensor) -> Tensor:
        soft = self.squash(self.encoder(images))
        bits = soft.round()
        if self.straight:
            bits = soft + (bits - soft).detach()
        out: Tensor = self.decoder(bits)
        return out


@sick(
    named_by={"VanishingGradient", "MissingGradient", "UnchangedTensor", "AllZero"},
    diagnosis="round() has no slope: the encoder gets zeros",
)
def rounded_without_straight_through(t: Training) -> None:
    """An autoencoder whose code is rounded, and nothing carries the gradient past it.

    Source: PyTorch's forum, "gradient of torch.round is zero".  Visible: when for ten
    steps the gradients of the encoder have been zero to the last.
    """
    split = digits()
    model, criterion = Rounded(straight=not t.sick), nn.MSELoss()
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        loss: Tensor = criterion(model(images), images)
        return loss

    def count() -> None:
        nonlocal times
        grads = [w.grad for w in model.encoder.parameters()]
        times = 0 if any(g is not None and bool(g.any()) for g in grads) else times + 1

    losses = train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=220,
        after_backward=count,
        visible=lambda _: times >= 10,
    )
    t.learned(mean(losses[-20:]) < 0.045)


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


@sick(
    named_by={"MissingGradient", "UnchangedTensor", "NotInOptimizer"},
    diagnosis="the generator's loss is taken of detached images",
)
def generator_of_detached_images(t: Training) -> None:
    """detach() was copied with the line of the discriminator.

    Source: PyTorch's forum on DCGAN.  Visible: when in 20 steps the generator has not
    moved.
    """
    split = digits()
    model, criterion = Pair(), nn.BCEWithLogitsLoss()
    makes = torch.optim.Adam(model.maker.parameters(), 2e-3, betas=(0.5, 0.999))
    tells = torch.optim.Adam(model.critic.parameters(), 1e-3, betas=(0.5, 0.999))
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


@sick(
    named_by={
        "ExplodingGradient",
        "ExplodingTensor",
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "LossSpike",
        "DeadRelu",
    },
    diagnosis="the scale of the loss is never taken out of the gradients",
)
def scale_never_taken_out(t: Training) -> None:
    """The loss times 1024 for half precision; the division was lost in a rewrite.

    Source: mixed precision by hand.  Visible: when the loss is not finite or, for ten
    steps, above twice the first.
    """
    split = digits()
    model, criterion = mlp([64, 48, 10]), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    scale = 1024.0
    real: list[float] = []

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        real.append(float(loss.detach()))
        return loss * scale

    def unscale() -> None:
        for weight in model.parameters():
            if weight.grad is not None and not t.sick:
                weight.grad /= scale

    train(
        t,
        loss_of,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        after_backward=unscale,
        visible=lambda _: len(real) > 10 and not min(real[-10:]) <= 2 * real[0],
    )
    t.learned(mean(real[-20:]) < 0.3)


class Gated(nn.Module):
    """A way through, opened by gates (Srivastava 2015)."""

    def __init__(self, opening: float, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.body = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.sigmoids = nn.ModuleList(nn.Sigmoid() for _ in range(depth))
        self.head = nn.Linear(32, 10)
        for gate in self.gate:
            nn.init.constant_(gate.bias, opening)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        layers = zip(self.body, self.gate, self.sigmoids, strict=True)
        for body, gate, sigmoid in layers:
            share = sigmoid(gate(x))
            x = share * torch.tanh(body(x)) + (1 - share) * x
        out: Tensor = self.head(x)
        return out


@sick(
    named_by={"SaturatedActivation", "VanishingGradient", "PoorWeightInitialization"},
    diagnosis="gates begin shut at -30, and no gradient opens them",
)
def gates_begin_shut(t: Training) -> None:
    """A gate's bias was to begin "negative, such as -1": it begins at -30.

    Source: highway networks written by hand.  Visible: when for 20 steps the layers
    behind the gates have had a billionth of the head's gradient.
    """
    split = digits()
    model = Gated(-30.0 if t.sick else -1.0)
    times = 0

    def shut(p: Probe) -> bool:
        nonlocal times
        named = dict(p.model.named_parameters())
        inner, outer = named["body.1.weight"].grad, named["head.weight"].grad
        if inner is None or outer is None:
            return False
        times = times + 1 if bool(inner.norm() < 1e-9 * outer.norm()) else 0
        return times >= 20

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=200,
        visible=shut,
        learned=0.9,
    )
