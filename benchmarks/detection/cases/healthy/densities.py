"""Healthy generative trainings whose loss has a floor that nobody knows."""

from __future__ import annotations

import copy
import math

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.optim import Adam, RMSprop

from benchmarks.detection.kit.case import fifth
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import descend, mean, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def moons(n: int = 1500) -> Tensor:
    """Two half circles in the plane, with mean 0 and deviation 1."""
    x = torch.tensor(datasets.make_moons(n, noise=0.05, random_state=0)[0])
    return ((x - x.mean(0)) / x.std(0)).float()


def apart(a: Tensor, b: Tensor) -> float:
    """Energy distance of two samples: 0 if they are of one distribution."""
    between = 2 * torch.cdist(a, b).mean()
    return float(between - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def drawn_well(t: Training, begin: Tensor, end: Tensor, data: Tensor) -> None:
    """Whether points that began as noise lie among the data now, and spread like them.

    They lie nearer to their neighbours in the data, and the distributions are twice as
    near to each other.
    """
    off = [float(torch.cdist(x, data).min(1).values.mean()) for x in (begin, end)]
    far = [apart(x, data) for x in (begin, end)]
    t.note(off_before=off[0], off=off[1], apart_before=far[0], apart=far[1])
    t.learned(off[1] < 0.7 * off[0] and far[1] < 0.5 * far[0])


def with_time(x: Tensor, time: Tensor) -> Tensor:
    """Points, and the time as columns of sines and cosines."""
    angles = time * torch.tensor([1.0, 2.0, 4.0]) * math.pi
    return torch.cat((x, angles.sin(), angles.cos()), 1)


def flow_along(model: nn.Module, x: Tensor, n: int = 25) -> Tensor:
    """Follow the velocities of a model from noise to data (Euler's method)."""
    with torch.no_grad():
        for k in range(n):
            time = torch.full((len(x), 1), k / n)
            x = x + model(with_time(x, time)) / n
    return x


@fifth.healthy
def rectified_flow_in_the_plane(t: Training) -> None:
    """Flow matching between a Gaussian and two moons; Liu 2022, Lipman 2023.

    Learned: samples lie among the data.
    """
    data, model = moons(), mlp((8, 96, 96, 2), nn.SiLU)
    criterion = nn.MSELoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        x = data[t.draw(len(data), 512)]
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        between = (1 - time) * noise + time * x
        return criterion(model(with_time(between, time)), x - noise)

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=500)
    noise = torch.randn(800, 2)
    drawn_well(t, noise, flow_along(model, noise), data)


@fifth.healthy
def flow_matching_of_pictures(t: Training) -> None:
    """Conditional flow matching of 64 pixels from -1 to 1; torchcfm's first example.

    Learned: samples are five times nearer to the pictures than noise is.
    """
    data, model = 2 * digits().x - 1, mlp((70, 192, 192, 64), nn.SiLU)
    criterion = nn.MSELoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        x = data[t.draw(len(data), 128)]
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        return criterion(model(with_time(noise + time * (x - noise), time)), x - noise)

    train(t, loss_of, Adam(model.parameters(), 1e-3), n_steps=350)
    noise = torch.randn(400, 64)
    before, after = apart(noise, data), apart(flow_along(model, noise), data)
    t.note(before=before, after=after)
    t.learned(after < 0.2 * before)


@fifth.healthy
def score_matching_by_denoising(t: Training) -> None:
    """Scores of moons at ten levels of noise, weighted by the level; Song 2019.

    Learned: annealed Langevin dynamics lead from noise to the data.
    """
    data, model = moons(), mlp((3, 96, 96, 2), nn.Softplus)
    levels = torch.logspace(math.log10(1.5), math.log10(0.08), 10)
    t.watch(model)

    def score(x: Tensor, level: Tensor) -> Tensor:
        out: Tensor = model(torch.cat((x, level.log()), 1)) / level
        return out

    def loss_of(_: int) -> Tensor:
        x = data[t.draw(len(data), 256)]
        level = levels[torch.randint(10, (len(x), 1))]
        noise = torch.randn_like(x)
        return ((level * score(x + level * noise, level) + noise) ** 2).sum(1).mean()

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=400)
    begin = x = 1.5 * torch.randn(800, 2)
    with torch.no_grad():
        for level in levels:
            rate = 0.1 * level**2
            for _ in range(20):
                drift = rate * score(x, level.expand(len(x), 1))
                x = x + drift + (2 * rate).sqrt() * torch.randn_like(x)
    drawn_well(t, begin, x, data)


@fifth.healthy
def energy_with_langevin_negatives(t: Training) -> None:
    """Contrastive divergence with a buffer of chains; Du and Mordatch 2019.

    The loss is a difference of two energies and stays near zero. Learned: the energy
    tells held-out moons from points spread evenly.
    """
    data = moons(2000)
    model = mlp((2, 64, 64, 1), nn.SiLU)
    optimizer = Adam(model.parameters(), 5e-3, betas=(0.0, 0.999))
    chains = 4 * torch.rand(512, 2) - 2
    t.watch(model)

    def langevin(x: Tensor) -> Tensor:
        for _ in range(15):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x)
            x = x - 0.02 * slope + 0.2 * torch.randn_like(x)
            x = x.clamp(-2.5, 2.5)
        return x.detach()

    for _ in t.steps(250):
        rows = torch.randint(len(chains), (128,))
        fresh = (torch.rand(128, 1) < 0.05).float()
        begin = fresh * (4 * torch.rand(128, 2) - 2) + (1 - fresh) * chains[rows]
        made = chains[rows] = langevin(begin)
        real = data[t.draw(1500, 128)]
        above, below = model(real), model(made)
        descend(
            optimizer,
            above.mean() - below.mean() + 0.01 * (above**2 + below**2).mean(),
        )
    with torch.no_grad():
        real, spread = model(data[1500:]), model(4 * torch.rand(500, 2) - 2)
    auc = float((real < spread.T).float().mean())
    t.note(auc=auc)
    t.learned(auc > 0.7)


@fifth.healthy
def velocity_prediction_with_average(t: Training) -> None:
    """Diffusion that predicts v under a cosine schedule; the average draws.

    Salimans and Ho 2022; an average of the weights with 0.98, from lucidrains' code.
    Learned: what DDIM draws from the average is near to the moons.
    """
    data, model = moons(), mlp((8, 96, 96, 2), nn.GELU)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    t.watch(model)

    def follow(_: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(
                average.parameters(), model.parameters(), strict=True
            ):
                slow.lerp_(fast, 0.02)

    def loss_of(_: int) -> Tensor:
        x = data[t.draw(len(data), 256)]
        noise, time = torch.randn_like(x), torch.rand(len(x), 1)
        alpha, sigma = (time * math.pi / 2).cos(), (time * math.pi / 2).sin()
        v = model(with_time(alpha * x + sigma * noise, time))
        return ((v - (alpha * noise - sigma * x)) ** 2).mean()

    optimizer = Adam(model.parameters(), 5e-3)
    train(t, loss_of, optimizer, n_steps=500, after_step=follow)
    begin = z = torch.randn(800, 2)
    with torch.no_grad():
        for k in range(30, 0, -1):
            now, then = k / 30 * math.pi / 2, (k - 1) / 30 * math.pi / 2
            v = average(with_time(z, torch.full((len(z), 1), k / 30)))
            x, noise = (
                math.cos(now) * z - math.sin(now) * v,
                math.sin(now) * z + math.cos(now) * v,
            )
            z = math.cos(then) * x + math.sin(then) * noise
    drawn_well(t, begin, z, data)


@fifth.healthy
def pixels_one_after_the_other(t: Training) -> None:
    """MADE: masked layers give each pixel's chance by those before it; Germain 2015.

    Learned: held-out pictures cost a quarter less than by independent pixels.
    """
    split = digits()
    x, x_val = (split.x > 0.5).float(), (split.x_val > 0.5).float()
    first, last = nn.Linear(64, 192), nn.Linear(192, 64)
    model = nn.ModuleList([first, last])
    order, hidden = torch.arange(64), torch.arange(192) % 63
    reads = (hidden[:, None] >= order).float()
    says = (order[:, None] > hidden).float()
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)

    def logits(of: Tensor) -> Tensor:
        linear = nn.functional.linear
        state = linear(of, first.weight * reads, first.bias).relu()
        return linear(state, last.weight * says, last.bias)

    def loss_of(_: int) -> Tensor:
        batch = x[t.draw(len(x), 100)]
        return criterion(logits(batch), batch)

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        loss = float(criterion(logits(x_val), x_val))
    share = x.mean(0).clamp(0.001, 0.999).expand_as(x_val)
    independent = float(nn.functional.binary_cross_entropy(share, x_val))
    t.note(validation=loss, independent=independent)
    t.learned(loss < 0.8 * independent)


@fifth.healthy
def critic_with_clipped_weights(t: Training) -> None:
    """Wasserstein GAN: five steps of a critic whose weights are clipped; Arjovsky 2017.

    Many weights lie at the bound, as meant. Learned: what is made is nearer to the
    data than at first.
    """
    data = moons()
    maker, critic = mlp((2, 64, 64, 2)), mlp((2, 64, 64, 1))
    both = nn.ModuleDict({"maker": maker, "critic": critic})
    for_maker = RMSprop(maker.parameters(), 1e-3)
    for_critic = RMSprop(critic.parameters(), 1e-3)
    begin = maker(torch.randn(800, 2)).detach()
    t.watch(both)
    for _ in t.steps(150):
        for _ in range(5):
            real = data[t.draw(len(data), 128)]
            made = maker(torch.randn(128, 2)).detach()
            descend(for_critic, critic(made).mean() - critic(real).mean())
            with torch.no_grad():
                for weight in critic.parameters():
                    weight.clamp_(-0.1, 0.1)
        descend(for_maker, -critic(maker(torch.randn(128, 2))).mean())
    with torch.no_grad():
        before, after = apart(begin, data), apart(maker(torch.randn(800, 2)), data)
    t.note(before=before, after=after)
    t.learned(after < 0.3 * before)


def sinkhorn(a: Tensor, b: Tensor, blur: float = 0.1, n: int = 12) -> Tensor:
    """Cost of the entropic transport of a sample to another one."""
    cost = torch.cdist(a, b) ** 2
    f, g = torch.zeros(len(a)), torch.zeros(len(b))
    for _ in range(n):
        f = -blur * ((g - cost) / blur - math.log(len(b))).logsumexp(1)
        g = -blur * ((f[:, None] - cost) / blur - math.log(len(a))).logsumexp(0)
    return f.mean() + g.mean()


@fifth.healthy
def transport_to_the_data(t: Training) -> None:
    """A generator that lowers the Sinkhorn divergence; Genevay 2018.

    Learned: what is made is five times nearer to the data than at first.
    """
    data, model = moons(), mlp((2, 64, 64, 2), nn.LeakyReLU)
    begin = model(torch.randn(800, 2)).detach()
    t.watch(model)

    def loss_of(_: int) -> Tensor:
        real, made = data[t.draw(len(data), 64)], model(torch.randn(64, 2))
        return sinkhorn(made, real) - (sinkhorn(made, made) + sinkhorn(real, real)) / 2

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=100)
    with torch.no_grad():
        before, after = apart(begin, data), apart(model(torch.randn(800, 2)), data)
    t.note(before=before, after=after)
    t.learned(after < 0.2 * before)


@fifth.healthy
def mixture_of_five_gaussians(t: Training) -> None:
    """Mixture density network for an inverse problem; Bishop 1994.

    One x has several y. Learned: the likelihood beats a single Gaussian's.
    """
    data = torch.Generator().manual_seed(1)
    y = torch.rand(2000, 1, generator=data)
    x = y + 0.3 * (2 * math.pi * y).sin() + 0.05 * torch.randn(2000, 1, generator=data)
    model = mlp((1, 48, 15), nn.Tanh)
    t.watch(model)

    def cost(inputs: Tensor, targets: Tensor) -> Tensor:
        weight, middle, width = model(inputs).chunk(3, 1)
        normal = torch.distributions.Normal(middle, width.exp() + 1e-3)
        return -(weight.log_softmax(1) + normal.log_prob(targets)).logsumexp(1).mean()

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1500, 128)
        return cost(x[rows], y[rows])

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=400)
    single = torch.distributions.Normal(y.mean(), y.std())
    baseline = -float(single.log_prob(y[1500:]).mean())
    with torch.no_grad():
        reached = float(cost(x[1500:], y[1500:]))
    t.note(validation=reached, baseline=baseline)
    t.learned(reached < baseline - 0.5)


@fifth.healthy
def importance_weighted_autoencoder(t: Training) -> None:
    """A bound by ten samples of a code of 8 numbers; Burda 2016.

    Learned: it lies above that of independent pixels.
    """
    split = digits()
    encoder, decoder = mlp((64, 96, 16)), mlp((8, 96, 64))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    t.watch(model)

    def bound(x: Tensor) -> Tensor:
        middle, width = encoder(x).chunk(2, 1)
        code = torch.distributions.Normal(middle, (width / 2).exp())
        z = code.rsample((10,))
        logits = decoder(z)
        pixels = nn.functional.binary_cross_entropy_with_logits(
            logits, x.expand_as(logits), reduction="none"
        ).sum(-1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z)
        weight = (prior - code.log_prob(z)).sum(-1) - pixels
        return weight.logsumexp(0) - math.log(10)

    def loss_of(_: int) -> Tensor:
        return -bound(split.x[t.draw(len(split.x), 64)]).mean()

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=250)
    with torch.no_grad():
        reached = float(-bound(split.x_val).mean())
    share = split.x.mean(0).clamp(0.001, 0.999).expand_as(split.x_val)
    independent = 64 * float(nn.functional.binary_cross_entropy(share, split.x_val))
    t.note(validation=reached, independent=independent)
    t.learned(reached < independent - 1)


@fifth.healthy
def masked_rows_are_filled_in(t: Training) -> None:
    """A masked autoencoder: 5 of 8 rows of a picture are hidden; He 2022.

    The loss is of hidden rows alone. Learned: it is half of what means would give.
    """
    split = digits()
    x, x_val = split.x.view(-1, 8, 8), split.x_val.view(-1, 8, 8)
    embed, body, head = nn.Linear(8, 48), mlp((8 * 48, 192, 8 * 48)), nn.Linear(48, 8)
    model = nn.ModuleDict({"embed": embed, "body": body, "head": head})
    hole = nn.Parameter(torch.randn(48) * 0.02)
    model.register_parameter("hole", hole)
    t.watch(model)

    def error(rows: Tensor) -> Tensor:
        hidden = torch.rand(rows.shape[:2], generator=t.order).argsort(1) < 5
        tokens = torch.where(hidden[..., None], hole, embed(rows))
        said = head(body(tokens.flatten(1)).view(-1, 8, 48))
        return ((said - rows)[hidden] ** 2).mean()

    losses = train(
        t,
        lambda _: error(x[t.draw(len(x), 64)]),
        Adam(model.parameters(), 2e-3),
        n_steps=400,
    )
    with torch.no_grad():
        reached = float(error(x_val))
    by_means = float(((x_val - x.mean(0)) ** 2).mean())
    t.note(validation=reached, by_means=by_means, last=mean(losses[-20:]))
    t.learned(reached < 0.8 * by_means)


@fifth.healthy
def noise_contrastive_density(t: Training) -> None:
    """An unnormalized density, told from known noise; Gutmann and Hyvarinen 2010.

    Learned: the classifier beats chance by a margin on data that it has not seen.
    """
    data = moons(2000)
    model, criterion = mlp((2, 64, 64, 1), nn.Tanh), nn.BCEWithLogitsLoss()
    noise = torch.distributions.Normal(0.0, 1.2)
    t.watch(model, criterion)

    def logits(x: Tensor) -> Tensor:
        out: Tensor = model(x)[:, 0] - noise.log_prob(x).sum(1)
        return out

    def cost(real: Tensor) -> Tensor:
        made = noise.sample(real.shape)
        labels = torch.cat((torch.ones(len(real)), torch.zeros(len(made))))
        return criterion(logits(torch.cat((real, made))), labels)

    train(
        t,
        lambda _: cost(data[t.draw(1500, 128)]),
        Adam(model.parameters(), 1e-2),
        n_steps=400,
    )
    with torch.no_grad():
        reached = float(cost(data[1500:]))
    t.note(validation=reached)
    t.learned(reached < math.log(2) - 0.1)
