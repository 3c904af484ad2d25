"""Healthy trainings of fields, codes and policies, and by other optimizers."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from benchmarks.detection.cases.healthy.densities import apart, drawn_well, moons
from benchmarks.detection.kit.case import seventh
from benchmarks.detection.kit.data import diabetes, digits, wine
from benchmarks.detection.kit.loops import descend, mean, pretrain, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def recognizes(t: Training, said: Tensor, y: Tensor, least: float) -> None:
    """Whether at least that share of new rows is classified rightly."""
    right = float((said.argmax(1) == y).float().mean())
    t.note(accuracy=right)
    t.learned(right > least)


@seventh.healthy
def prompted_by_pixels(t: Training) -> None:
    """A frozen network, eight added rows that learn: prompts for inverted digits.

    Learned: at least twice as many are recognized as without prompts.
    """
    split = digits()
    frozen = mlp((128, 96, 96, 10))
    blank = torch.zeros(len(split.x), 64)
    wide = split.inputs(lambda x: torch.cat((x, blank[: len(x)]), 1))
    noisy = wide.inputs(lambda x: x + 0.3 * torch.randn_like(x))
    pretrain(frozen, noisy, 250)
    frozen.requires_grad_(False)
    prompt = nn.Linear(64, 64)
    nn.init.zeros_(prompt.weight)
    model = nn.ModuleDict({"prompt": prompt, "network": frozen})
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        x = 1 - x
        out: Tensor = frozen(torch.cat((x, prompt(x)), 1))
        return out

    with torch.no_grad():
        before = float((said(split.x_val).argmax(1) == split.y_val).float().mean())

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(prompt.parameters(), 1e-2), n_steps=300)
    with torch.no_grad():
        after = float((said(split.x_val).argmax(1) == split.y_val).float().mean())
    t.note(before=before, after=after)
    t.learned(after > max(2 * before, 0.4))


@seventh.healthy
def reversible_layers(t: Training) -> None:
    """Additive couplings whose inputs can be computed from outputs; Gomez 2017."""
    split = digits()
    steps = nn.ModuleList(mlp((32, 48, 32), nn.Tanh) for _ in range(6))
    head = nn.Linear(64, 10)
    model, criterion = nn.ModuleList([steps, head]), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        for step in steps:
            a, b = b, a + step(b)
        out: Tensor = head(torch.cat((a, b), 1))
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=300)
    with torch.no_grad():
        recognizes(t, said(split.x_val), split.y_val, 0.88)


class Sine(nn.Module):
    """A layer of sines of 30 times its input; Sitzmann 2020."""

    def __init__(self, n_in: int, n_out: int, *, is_first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        bound = 1 / n_in if is_first else math.sqrt(6 / n_in) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.sin(30 * self.linear(x))
        return out


@seventh.healthy
def picture_of_sines(t: Training) -> None:
    """SIREN: a sheet of digits as a function of the place, by places drawn by chance.

    Learned: three quarters of the variance.
    """
    sheet = digits().x[:16].view(4, 4, 8, 8).transpose(1, 2).reshape(-1, 1)
    line = torch.linspace(-1, 1, 32)
    places = torch.cartesian_prod(line, line)
    model = nn.Sequential(
        Sine(2, 64, is_first=True), Sine(64, 64, is_first=False), nn.Linear(64, 1)
    )
    criterion = nn.MSELoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(1024, 256)
        return criterion(model(places[rows]), sheet[rows])

    losses = train(t, loss_of, Adam(model.parameters(), 1e-3), n_steps=400)
    t.learned(mean(losses[-20:]) < 0.25 * float(sheet.var()))


@seventh.healthy
def field_from_its_shadows(t: Training) -> None:
    """A density in the plane from sums along rays, as NeRF does; Mildenhall 2020.

    Learned: the density itself, which no ray shows, correlates with the true one.
    """
    true = digits().x[:9].view(3, 3, 8, 8).transpose(1, 2).reshape(1, 1, 24, 24)
    octaves = 2.0 ** torch.arange(4) * math.pi / 2
    model = nn.Sequential(*mlp((16, 64, 64, 1)), nn.Softplus())
    criterion = nn.MSELoss()
    along = torch.linspace(-1, 1, 32)
    t.watch(model, criterion)

    def density(places: Tensor) -> Tensor:
        angles = (places[..., None] * octaves).flatten(-2)
        out: Tensor = model(torch.cat((angles.sin(), angles.cos()), -1))[..., 0]
        return out

    def truth(places: Tensor) -> Tensor:
        found = nn.functional.grid_sample(true, places[None], align_corners=True)
        return found[0, 0]

    def loss_of(_: int) -> Tensor:
        turn = 2 * math.pi * torch.rand(64, 1, generator=t.order)
        off = 2 * torch.rand(64, 1, generator=t.order) - 1
        x = off * turn.cos() - along * turn.sin()
        y = off * turn.sin() + along * turn.cos()
        rays = torch.stack((x, y), 2)
        return criterion(density(rays).mean(1), truth(rays).mean(1))

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    line = torch.linspace(-0.9, 0.9, 24)
    places = torch.cartesian_prod(line, line)[None]
    with torch.no_grad():
        both = torch.stack((density(places)[0], truth(places)[0]))
    alike = float(torch.corrcoef(both)[0, 1])
    t.note(alike=alike)
    t.learned(alike > 0.6)


def sparsemax(x: Tensor) -> Tensor:
    """Project rows onto the simplex, so that many entries are zero; Martins 2016."""
    ordered = x.sort(1, descending=True).values
    sums = ordered.cumsum(1) - 1
    n = torch.arange(1, x.shape[1] + 1)
    last = (n * ordered > sums).sum(1, keepdim=True)
    return (x - sums.gather(1, last - 1) / last).clamp(min=0)


@seventh.healthy
def chooses_its_columns(t: Training) -> None:
    """TabNet: a sparse mask over the columns, three times; Arik 2021."""
    split = wine()
    masks = nn.ModuleList(nn.Linear(16, 13) for _ in range(3))
    reads = nn.ModuleList(nn.Linear(13, 32) for _ in range(3))
    head = nn.Linear(16, 3)
    model, criterion = nn.ModuleList([masks, reads, head]), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        state, total, prior = torch.zeros(len(x), 16), 0.0, torch.ones_like(x)
        for mask, read in zip(masks, reads, strict=True):
            chosen = sparsemax(prior * (mask(state) + 1))
            prior = prior * (1.3 - chosen)
            decided, state = nn.functional.gelu(read(chosen * x * 4)).chunk(2, 1)
            total = total + decided
        out: Tensor = head(total)
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 32)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=250)
    with torch.no_grad():
        recognizes(t, said(split.x_val), split.y_val, 0.88)


class Shampoo(Optimizer):
    """Gradients between roots of their own second moments; Gupta 2018."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step down, with matrices renewed at every tenth step."""
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                slope = p.grad.view(len(p), -1)
                if not state:
                    sizes = slope.shape
                    state["n"] = 0
                    state["of"] = [1e-4 * torch.eye(n) for n in sizes]
                    state["root"] = [torch.eye(n) for n in sizes]
                state["of"][0] += slope @ slope.T
                state["of"][1] += slope.T @ slope
                if state["n"] % 10 == 0:
                    state["root"] = [_root(m) for m in state["of"]]
                state["n"] += 1
                change = state["root"][0] @ slope @ state["root"][1]
                p.sub_(group["lr"] * change.view_as(p))


def _root(m: Tensor) -> Tensor:
    """The inverse fourth root."""
    values, vectors = torch.linalg.eigh(m)
    return vectors * values.clamp(min=1e-8) ** -0.25 @ vectors.T


@seventh.healthy
def steps_by_shampoo(t: Training) -> None:
    """An optimizer of one's own, which the hook has never seen."""
    split, model, criterion = digits(), mlp((64, 48, 10)), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(model(split.x[rows]), split.y[rows])

    train(t, loss_of, Shampoo(model.parameters(), 0.05), n_steps=250)
    with torch.no_grad():
        recognizes(t, model(split.x_val), split.y_val, 0.9)


@seventh.healthy
def consistent_along_the_way(t: Training) -> None:
    """Consistency distillation of a flow between two moons; Song 2023.

    A teacher of velocities was trained before. The student says from anywhere where the
    way ends; targets are its average's. It draws in training mode, in one step.
    """
    data = moons()
    teacher = mlp((3, 96, 96, 2), nn.SiLU)
    optimizer = Adam(teacher.parameters(), 3e-3)
    for _ in range(500):
        x = data[t.draw(len(data), 256)]
        z, time = torch.randn_like(x), torch.rand(len(x), 1)
        said = teacher(torch.cat((z + time * (x - z), time), 1))
        descend(optimizer, ((said - (x - z)) ** 2).mean())
    student = copy.deepcopy(teacher)
    average = copy.deepcopy(teacher).requires_grad_(False)
    criterion = nn.MSELoss()
    t.watch(student, criterion)

    def end_of_way(model: nn.Module, at: Tensor, time: Tensor) -> Tensor:
        return at + (1 - time) * model(torch.cat((at, time), 1))

    def loss_of(_: int) -> Tensor:
        x = data[t.draw(len(data), 256)]
        z = torch.randn_like(x)
        time = torch.randint(20, (len(x), 1)) / 20
        at = z + time * (x - z)
        with torch.no_grad():
            later = at + teacher(torch.cat((at, time), 1)) / 20
            wanted = end_of_way(average, later, time + 0.05)
        return criterion(end_of_way(student, at, time), wanted)

    def follow(_: int) -> None:
        with torch.no_grad():
            for mine, its in zip(
                average.parameters(), student.parameters(), strict=True
            ):
                mine.lerp_(its, 0.05)

    train(t, loss_of, Adam(student.parameters(), 1e-3), n_steps=400, after_step=follow)
    begin = torch.randn(800, 2)
    with torch.no_grad():
        for _ in range(40):
            end = end_of_way(student, begin, torch.zeros(800, 1))
    drawn_well(t, begin, end, data)


@seventh.healthy
def parts_that_are_not_negative(t: Training) -> None:
    """Digits as sums of parts, clamped at zero after each step; Lee and Seung 1999.

    Most weights end at zero and stay there. Learned: 70 % of the variance.
    """
    x = digits().x[:500]
    codes, parts = nn.Linear(500, 24, bias=False), nn.Linear(24, 64, bias=False)
    for layer in (codes, parts):
        nn.init.uniform_(layer.weight, 0.0, 0.3)
    model, criterion = nn.ModuleList([codes, parts]), nn.MSELoss()
    t.watch(model, criterion)

    def limit(_: int) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(min=0.0)

    def loss_of(_: int) -> Tensor:
        return criterion(parts(codes.weight.T), x)

    losses = train(
        t, loss_of, Adam(model.parameters(), 1e-2), n_steps=300, after_step=limit
    )
    t.learned(losses[-1] < 0.3 * float(x.var(0).mean()))


@seventh.healthy
def codes_mostly_zero(t: Training) -> None:
    """A sparse autoencoder: 256 features, of which some are active; Bricken 2023.

    Learned: half of the variance, with fewer than 40 of 256 active.
    """
    split = digits()
    enter, leave = nn.Linear(64, 256), nn.Linear(256, 64)
    relu, criterion = nn.ReLU(), nn.MSELoss()
    model = nn.ModuleDict({"enter": enter, "relu": relu, "leave": leave})
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        x = split.x[t.draw(len(split.x), 64)]
        code = relu(enter(x - leave.bias))
        return criterion(leave(code), x) + 2e-3 * code.abs().sum(1).mean()

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=400)
    with torch.no_grad():
        code = torch.relu(enter(split.x_val - leave.bias))
        error = (leave(code) - split.x_val).pow(2).mean()
    left = float(error / split.x_val.var(0).mean())
    active = float((code > 0).float().sum(1).mean())
    t.note(left=left, active=active)
    t.learned(left < 0.5 and active < 60)


@seventh.healthy
def rolls_out_then_learns(t: Training) -> None:
    """PPO on ten levers: 20 steps without gradient, then 4 of the optimizer; often.

    The model stays in training mode all the time, as in CleanRL. Learned: three
    quarters of the reward.
    """
    split = digits()
    model = mlp((64, 64, 11))
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model)
    rewards, updates = [], iter(t.steps(240))
    for _ in range(60):
        seen: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(20):
                rows = t.draw(len(split.x), 16)
                out = model(split.x[rows])
                policy = torch.distributions.Categorical(logits=out[:, :10])
                lever = policy.sample()
                reward = (lever == split.y[rows]).float()
                gain = reward - out[:, 10]
                seen.append((rows, lever, policy.log_prob(lever), reward, gain))
        rows, lever, before, reward, gain = map(torch.cat, zip(*seen, strict=True))
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        for _ in range(4):
            next(updates)
            out = model(split.x[rows])
            policy = torch.distributions.Categorical(logits=out[:, :10])
            ratio = (policy.log_prob(lever) - before).exp()
            kept = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            value = ((out[:, 10] - reward) ** 2).mean()
            descend(
                optimizer, 0.5 * value - kept.mean() - 0.01 * policy.entropy().mean()
            )
        rewards.append(float(reward.mean()))
    for _ in updates:
        pass
    t.note(first_reward=rewards[0], last_reward=mean(rewards[-5:]))
    t.learned(mean(rewards[-5:]) > 0.75)


@seventh.healthy
def watched_in_keras(t: Training) -> None:
    """Keras by ``fit``: a small network on digits, validated after each epoch."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    keras.utils.set_random_seed(t.seed)
    split = digits()
    x, y, x_val, y_val = (
        part.numpy() for part in (split.x, split.y, split.x_val, split.y_val)
    )
    layers = [keras.layers.Dense(48, "gelu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-3), loss, metrics=["accuracy"])
    t.counted(5 * (len(x) // 32 + 1))
    model.fit(
        x,
        y,
        32,
        5,
        verbose=0,
        validation_data=(x_val, y_val),
        callbacks=t.callbacks("keras"),
    )
    right = float((model.predict(x_val, verbose=0).argmax(1) == y_val).mean())
    t.note(accuracy=right)
    t.learned(right > 0.85)


@seventh.healthy
def watched_in_jax(t: Training) -> None:
    """A network in JAX and optax; the rate falls by a cosine to a tenth."""
    import jax
    import optax

    split = digits()
    x, y, x_val = split.x.numpy(), split.y.numpy(), split.x_val.numpy()
    first, second = jax.random.split(jax.random.key(t.seed))
    weights: Any = {
        "in": jax.random.normal(first, (64, 64)) / 8,
        "out": jax.random.normal(second, (64, 10)) / 8,
    }
    rule = optax.adam(optax.cosine_decay_schedule(5e-3, 250, 0.1))
    state = rule.init(weights)

    def said(weights: Any, x: Any) -> Any:
        return jax.nn.silu(x @ weights["in"]) @ weights["out"]

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        logits = said(weights, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
        updates, state = rule.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    compiled = t.jit(step)
    for _, rows in t.batches(250, len(x), 64, drop_last=True):
        chosen = rows.numpy()
        weights, state, _ = compiled(weights, state, x[chosen], y[chosen])
    told = torch.tensor(said(weights, x_val).__array__())
    recognizes(t, told, split.y_val, 0.88)


@seventh.healthy
def watched_trees(t: Training) -> None:
    """XGBoost on how a disease went on: shallow trees, a low rate, rows drawn.

    Learned: a third of the variance of new rows is explained.
    """
    import xgboost

    split = diabetes()
    x, y = split.x.numpy(), split.y.numpy().ravel()
    x_val, y_val = split.x_val.numpy(), split.y_val.numpy().ravel()
    data, new = xgboost.DMatrix(x, y), xgboost.DMatrix(x_val, y_val)
    given = {
        "max_depth": 2,
        "eta": 0.08,
        "subsample": 0.7,
        "seed": t.seed,
        "nthread": 1,
    }
    t.counted(60)
    booster = xgboost.train(
        given,
        data,
        60,
        evals=[(data, "train"), (new, "valid")],
        verbose_eval=False,
        callbacks=t.callbacks("xgboost"),
    )
    explained = 1 - float(((booster.predict(new) - y_val) ** 2).mean() / y_val.var())
    t.note(explained=explained)
    t.learned(explained > 0.3)


@seventh.healthy
def experts_that_wait(t: Training) -> None:
    """Eight experts, and each digit goes to the first of its class's; Switch, 2021.

    At first only classes 0 to 3 are shown, so half of the experts have no tokens.
    """
    split = digits()
    experts = nn.ModuleList(mlp((64, 24, 10)) for _ in range(8))
    router, criterion = nn.Linear(64, 8), nn.CrossEntropyLoss()
    model = nn.ModuleDict({"router": router, "experts": experts})
    t.watch(model, criterion)
    early = (split.y < 4).nonzero()[:, 0]

    def said(x: Tensor) -> tuple[Tensor, Tensor]:
        weights = router(x).softmax(1)
        best, which = weights.max(1)
        out = torch.zeros(len(x), 10)
        for k, expert in enumerate(experts):
            rows = (which == k).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, best[rows, None] * expert(x[rows]))
        share = torch.bincount(which, minlength=8) / len(x)
        return out, 8 * (share * weights.mean(0)).sum()

    def loss_of(step: int) -> Tensor:
        rows = early[t.draw(len(early), 64)] if step < 100 else t.draw(len(split.x), 64)
        out, balance = said(split.x[rows])
        return criterion(out, split.y[rows]) + 0.02 * balance

    optimizer = Adam(model.parameters(), 3e-3)
    train(t, loss_of, optimizer, n_steps=400)
    with torch.no_grad():
        recognizes(t, said(split.x_val)[0], split.y_val, 0.85)


@seventh.healthy
def critic_between_bounds(t: Training) -> None:
    """A WGAN's critic, clamped at 0.1 after each step; five of its steps to one.

    Arjovsky 2017. Most weights end at a bound. Learned: what is drawn comes nearer.
    """
    data = moons()
    maker, critic = mlp((4, 64, 64, 2)), mlp((2, 64, 64, 1))
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    slow, fast = (
        torch.optim.RMSprop(part.parameters(), 1e-3) for part in (maker, critic)
    )
    t.watch(model, optimizer=slow)
    begin = maker(torch.randn(800, 4)).detach()
    for _ in t.steps(400):
        for _ in range(5):
            real, made = data[t.draw(len(data), 128)], maker(torch.randn(128, 4))
            descend(fast, critic(made.detach()).mean() - critic(real).mean())
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
        descend(slow, -critic(maker(torch.randn(128, 4))).mean())
    with torch.no_grad():
        far = [apart(x, data) for x in (begin, maker(torch.randn(800, 4)))]
    t.note(apart_before=far[0], apart=far[1])
    t.learned(far[1] < 0.2 * far[0])


@seventh.healthy
def only_the_gates_are_sure(t: Training) -> None:
    """A highway network: hard gates between a layer and its input; Srivastava 2015.

    Gates begin closed (-3) and many stay so. Learned: digits.
    """
    split = digits()
    enter, head = nn.Linear(64, 48), nn.Linear(48, 10)
    change = nn.ModuleList(nn.Linear(48, 48) for _ in range(4))
    gates = nn.ModuleList(
        nn.Sequential(nn.Linear(48, 48), nn.Sigmoid()) for _ in change
    )
    for gate in gates:
        nn.init.constant_(gate[0].bias, -4.0)
        nn.init.normal_(gate[0].weight, std=0.5)
    model = nn.ModuleList([enter, change, gates, head])
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        h = enter(x).relu()
        for layer, gate in zip(change, gates, strict=True):
            open_ = gate(h)
            h = open_ * layer(h).relu() + (1 - open_) * h
        out: Tensor = head(h)
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, SGD(model.parameters(), 0.1, 0.9), n_steps=300)
    with torch.no_grad():
        recognizes(t, said(split.x_val), split.y_val, 0.88)
