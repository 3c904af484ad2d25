"""Healthy generative models."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import digits, wine
from benchmarks.detection.kit.loops import descend, fell, mean
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class VAE(nn.Module):
    """Four latent numbers; puts out logits of pixels, mean and log variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp((64, 64, 8))
        self.decoder = mlp((4, 64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(latent), mean, log_var


class Elbo(nn.Module):
    """Cross entropy of pixels plus the divergence from a normal distribution."""

    def forward(self, said: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        logits, mean, log_var = said
        pixels = nn.functional.binary_cross_entropy_with_logits(
            logits, x, reduction="sum"
        )
        prior = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        return (pixels + prior) / len(x)


@second.healthy
def vae(t: Training) -> None:
    """Variational autoencoder; its loss is a sum over pixels and cannot come to 0."""
    split = digits()
    model, criterion = VAE(), Elbo()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 64)
    losses = []
    for _ in t.steps(300):
        x = split.x[next(batches)]
        losses.append(descend(optimizer, criterion(model(x), x)))
    t.learned(fell(t, losses, 0.75))


@second.healthy
def gan(t: Training) -> None:
    """Two players with an optimizer each; neither loss is meant to fall for long.

    Learned: the mean picture of what is generated resembles the mean of the real ones.
    """
    split = digits()
    generator = nn.Sequential(
        nn.Linear(16, 128), nn.BatchNorm1d(128), nn.ReLU(),
        nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
        nn.Linear(128, 64), nn.Sigmoid(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3),
        nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1),
    )  # fmt: skip
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    loss_of_critic, loss_of_generator = nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss()
    opt_g = Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
    opt_d = Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))
    t.watch(model, loss_of_critic, loss_of_generator, optimizer=opt_g)
    batches = t.epochs(len(split.x), 64, drop_last=True)
    real, fake = torch.full((64, 1), 0.9), torch.zeros(64, 1)
    for _ in t.steps(600):
        x = split.x[next(batches)]
        made = generator(torch.randn(64, 16, generator=t.order))
        opt_d.zero_grad()
        loss = loss_of_critic(critic(x), real) + loss_of_critic(
            critic(made.detach()), fake
        )
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_of_generator(critic(made), real).backward()
        opt_g.step()
    with torch.no_grad():
        mean = generator(torch.randn(500, 16, generator=t.order)).mean(0)
    alike = float(torch.corrcoef(torch.stack([mean, split.x.mean(0)]))[0, 1])
    t.note(mean_pictures_correlate=alike)
    t.learned(alike > 0.85)


class Denoiser(nn.Module):
    """Guesses the noise, given the time as sines; its last layer begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 128))
        self.enter, self.middle = nn.Linear(64, 128), nn.Linear(128, 128)
        self.norm, self.act = nn.LayerNorm(128), nn.SiLU()
        self.leave = nn.Linear(128, 64)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        waves = time[:, None] * torch.exp(-math.log(1000) * torch.arange(8) / 8)
        place = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        h = self.act(self.enter(x) + place)
        h = h + self.act(self.middle(self.norm(h) + place))
        return self.leave(h)


@second.healthy
def diffusion(t: Training) -> None:
    """Denoising diffusion with 100 steps of noise; pictures from -1 to 1.

    The loss begins at 1, the variance of the noise, and stays noisy to the end.
    """
    split = digits().inputs(lambda x: 2 * x - 1)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 100), 0)
    model, criterion = Denoiser(), nn.MSELoss()
    optimizer = AdamW(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 128, drop_last=True)
    losses = []
    for _ in t.steps(400):
        x = split.x[next(batches)]
        time = torch.randint(100, (len(x),), generator=t.order)
        noise = torch.randn(x.shape, generator=t.order)
        share = kept[time][:, None]
        noisy = share.sqrt() * x + (1 - share).sqrt() * noise
        loss = criterion(model(noisy, time.float()), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    t.note(loss=mean(losses[-20:]))
    t.learned(mean(losses[-20:]) < 0.4)


@second.healthy
def bottleneck_autoencoder(t: Training) -> None:
    """64 pixels through 6 numbers and back; BCE of a sigmoid.

    Learned: 6 principal components would leave 0.03 of the variance of 0.07.
    """
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6),
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid(),
    )  # fmt: skip
    criterion = nn.BCELoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 64)
    for step in t.steps(400):
        x = split.x[next(batches)]
        descend(optimizer, criterion(model(x), x))
        if step % 50 == 49:
            t.evaluate(model, criterion, split.x_val, split.x_val)
    with torch.no_grad():
        off = float((model(split.x_val) - split.x_val).pow(2).mean())
    t.note(off=off)
    t.learned(off < 0.04)


class Sparse(nn.Module):
    """More units than pixels, of which few may be active at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.relu = nn.Linear(64, 192), nn.ReLU()
        self.decode = nn.Linear(192, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.relu(self.encode(x))
        return self.decode(code), code


class SparseLoss(nn.Module):
    """Squared error and a price for activity."""

    def forward(self, said: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        return nn.functional.mse_loss(said[0], x) + 0.1 * said[1].abs().mean()


@second.healthy
def sparse_autoencoder(t: Training) -> None:
    """Overcomplete code of ReLUs with an L1 penalty: most units are zero, rightly."""
    split = digits()
    model, criterion = Sparse(), SparseLoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 64)
    losses = []
    for _ in t.steps(350):
        x = split.x[next(batches)]
        losses.append(descend(optimizer, criterion(model(x), x)))
    with torch.no_grad():
        active = float((model.relu(model.encode(split.x_val)) > 0).float().mean())
    t.note(active=active)
    t.learned(fell(t, losses, 0.3) and active < 0.6)


class Coupling(nn.Module):
    """RealNVP: half of the columns scales and shifts the others; begins as identity."""

    def __init__(self, width: int, *, flip: bool) -> None:
        super().__init__()
        self.n, self.flip = width // 2, flip
        self.net = mlp((self.n, 48, 2 * (width - self.n)), nn.Tanh)
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flip(1) if self.flip else x
        fixed, moved = x[:, : self.n], x[:, self.n :]
        scale, shift = self.net(fixed).chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([fixed, moved * scale.exp() + shift], 1), scale.sum(1)


class Flow(nn.Module):
    """Four couplings; puts out log likelihoods."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width, flip=i % 2 > 0) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, log_scale = layer(x)
            total = total + log_scale
        return total - 0.5 * (x**2).sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)


@second.healthy
def normalizing_flow(t: Training) -> None:
    """RealNVP on the wines: the loss is a negative log likelihood and falls below 0.

    No criterion is a module here.
    """
    data = wine().x[:, :6]
    model = Flow(6)
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)
    losses = [descend(optimizer, -model(data).mean()) for _ in t.steps(250)]
    t.note(begin=losses[0], end=losses[-1])
    t.learned(losses[-1] < losses[0] - 1)


class UNet(nn.Module):
    """Down, up, and a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.deep = nn.Sequential(
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Sequential(
            nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        out: Tensor = self.out(torch.cat([h, self.up(self.deep(h))], 1))
        return out


@second.healthy
def unet_segmentation(t: Training) -> None:
    """Where is ink, under noise: cross entropy of pixels and Dice."""
    split = digits()
    model, pixels = UNet(), nn.BCEWithLogitsLoss()
    optimizer = AdamW(model.parameters(), 3e-3)
    t.watch(model, pixels)
    batches = t.epochs(len(split.x), 32)
    scores = []
    for _ in t.steps(200):
        x = split.x[next(batches)].view(-1, 1, 8, 8)
        ink = (x > 0.5).float()
        logits = model(x + 0.3 * torch.randn(x.shape, generator=t.order))
        chance = logits.sigmoid()
        dice = 2 * (chance * ink).sum() / (chance.sum() + ink.sum() + 1)
        descend(optimizer, pixels(logits, ink) + 1 - dice)
        scores.append(float(dice.detach()))
    t.note(dice=mean(scores[-20:]))
    t.learned(mean(scores[-20:]) > 0.8)
