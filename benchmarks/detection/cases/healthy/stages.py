"""Healthy trainings that come in stages, wait for something, or learn late."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from benchmarks.detection.kit.case import eighth
from benchmarks.detection.kit.data import Split, digits, wine
from benchmarks.detection.kit.loops import descend, fell, mean, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def share_of(model: nn.Module, split: Split) -> float:
    """Accuracy on new rows; no step of evaluation."""
    with torch.no_grad():
        said = model(split.x_val).argmax(1)
    return float((said == split.y_val).float().mean())


@eighth.healthy
def sums_modulo_a_prime(t: Training) -> None:
    """Sums modulo 23 from half of all pairs; known by heart first, then understood.

    Power 2022.  Decay of weights is what generalizes; evaluated every 25 steps.
    Learned: more than a third of the other pairs is right, by chance 1 in 23.
    """
    n = 23
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    y = pairs.sum(1) % n
    order = torch.randperm(len(pairs), generator=t.order)
    known, new = order[: int(0.6 * len(order))], order[int(0.6 * len(order)) :]

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = nn.Embedding(n, 48)
            self.rest = mlp((48, 128, n))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.rest(self.numbers(x).sum(1))
            return out

    model, criterion = Sums(), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 5e-3, weight_decay=1.0)
    t.watch(model, criterion)
    right = 0.0
    for step in t.steps(600):
        descend(optimizer, criterion(model(pairs[known]), y[known]))
        if step % 25 == 24:
            _, said = t.evaluate(model, criterion, pairs[new], y[new])
            right = float((said.argmax(1) == y[new]).float().mean())
    t.note(right=right)
    t.learned(right > 0.33)


@eighth.healthy
def looks_up_its_pairs(t: Training) -> None:
    """Keys and values in a row, then a key: which value was its?  Attention finds out.

    Associative recall; Fu 2023.  The loss stays at that of a guess for a while.
    Learned: 80 % are right, by chance 1 in 8.
    """
    n, n_pairs = 8, 3

    class Recall(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(2 * n, 48), nn.Embedding(7, 48)
            layer = nn.TransformerEncoderLayer(
                48, 4, 96, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(48, n)

        def forward(self, x: Tensor) -> Tensor:
            h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            out: Tensor = self.head(self.layers(h)[:, -1])
            return out

    def batch(size: int) -> tuple[Tensor, Tensor]:
        keys = torch.rand(size, n, generator=t.order).argsort(1)[:, :n_pairs]
        values = torch.randint(n, (size, n_pairs), generator=t.order)
        asked = torch.randint(n_pairs, (size, 1), generator=t.order)
        row = torch.stack((keys, values + n), 2).flatten(1)
        return torch.cat((row, keys.gather(1, asked)), 1), values.gather(1, asked)[:, 0]

    model, criterion = Recall(), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    optimizer = Adam(model.parameters(), 2e-3)
    losses = []
    for _ in t.steps(700):
        x, y = batch(96)
        losses.append(descend(optimizer, criterion(model(x), y)))
    x, y = batch(500)
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    t.note(right=right, first_loss=losses[0], last_loss=mean(losses[-10:]))
    t.learned(right > 0.8)


@eighth.healthy
def one_layer_after_the_other(t: Training) -> None:
    """Stacked denoising autoencoders: each layer learns alone, then all; Vincent 2010.

    All are in the model from the start, and one optimizer holds all of them.
    """
    split = digits()
    sizes = (64, 64, 32, 16)
    encoders = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
    decoders = nn.ModuleList(nn.Linear(b, a) for a, b in pairwise(sizes))
    head = nn.Linear(sizes[-1], 10)
    model = nn.ModuleDict({"encode": encoders, "decode": decoders, "head": head})
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)

    def coded(x: Tensor, n: int) -> Tensor:
        for layer in encoders[:n]:
            x = torch.relu(layer(x))
        return x

    losses = []
    for step in t.steps(400):
        rows = t.draw(len(split.x), 64)
        x = split.x[rows]
        stage = step // 80
        if stage < 3:
            with torch.no_grad():
                below = coded(x, stage)
            noisy = below * (torch.rand(below.shape, generator=t.order) > 0.2)
            again = decoders[stage](torch.relu(encoders[stage](noisy)))
            loss = functional.mse_loss(again, below)
        else:
            loss = functional.cross_entropy(head(coded(x, 3)), split.y[rows])
        losses.append(descend(optimizer, loss))
    t.note(begin=mean(losses[240:250]), end=mean(losses[-10:]))
    with torch.no_grad():
        right = (head(coded(split.x_val, 3)).argmax(1) == split.y_val).float().mean()
    t.note(right=float(right))
    t.learned(right > 0.85)


@eighth.healthy
def tasks_take_turns(t: Training) -> None:
    """One trunk, four heads of their own task; a step is of one task, round and round.

    Three heads are idle at each step, and SGD gives each only its own steps.
    """
    split = digits()
    tasks = (split.y, split.y % 2, (split.y > 4).long(), split.y // 4)
    trunk = mlp((64, 64, 48))
    heads = nn.ModuleList(nn.Linear(48, n) for n in (10, 2, 2, 3))
    model = nn.ModuleDict({"trunk": trunk, "heads": heads})
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    t.watch(model, criterion)
    losses = []
    for step in t.steps(480):
        rows = t.draw(len(split.x), 64)
        task = step % 4
        said = heads[task](torch.relu(trunk(split.x[rows])))
        losses.append(descend(optimizer, criterion(said, tasks[task][rows])))
    for task in range(4):
        t.note(**{f"loss_{task}": mean(losses[task - 40 :: 4])})
    with torch.no_grad():
        said = heads[0](torch.relu(trunk(split.x_val))).argmax(1)
    t.learned((said == split.y_val).float().mean() > 0.9)


@eighth.healthy
def the_price_comes_later(t: Training) -> None:
    """A VAE whose divergence costs nothing for 100 steps, then more and more.

    Annealing; Bowman 2016.  The loss rises as the price does, the picture does not
    suffer much.
    """
    split = digits()
    encoder, decoder = mlp((64, 96, 16)), mlp((8, 96, 64))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model)
    drawn: list[float] = []

    def loss_of(step: int) -> Tensor:
        x = split.x[t.draw(len(split.x), 64)]
        middle, log_variance = encoder(x).chunk(2, 1)
        noise = torch.randn(middle.shape, generator=t.order)
        again = decoder(middle + (0.5 * log_variance).exp() * noise)
        picture = functional.binary_cross_entropy_with_logits(
            again, x, reduction="none"
        )
        divergence = 0.5 * (middle**2 + log_variance.exp() - 1 - log_variance)
        price = min(1.0, max(0.0, (step - 100) / 200))
        drawn.append(float(picture.sum(1).mean().detach()))
        return picture.sum(1).mean() + price * divergence.sum(1).mean()

    train(t, loss_of, optimizer, n_steps=450)
    t.learned(fell(t, drawn, 0.75))


@eighth.healthy
def asks_for_labels(t: Training) -> None:
    """Active learning: 20 labels, and every 60 steps 20 more, the least sure ones.

    Settles 2009.  What is asked for is hard, so the loss jumps up each time.
    """
    split = digits()
    model, criterion = mlp((64, 64, 10)), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    known = torch.cat([(split.y == k).nonzero()[:2, 0] for k in range(10)])
    for step in t.steps(480):
        if step % 60 == 59:
            with torch.no_grad():
                chances = model(split.x).softmax(1)
            best = chances.topk(2, 1).values
            margin = best[:, 0] - best[:, 1]
            margin[known] = 2.0
            known = torch.cat((known, margin.argsort()[:20]))
        rows = known[t.draw(len(known), 20)]
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    right = share_of(model, split)
    t.note(right=right)
    t.learned(right > 0.85)


def move_connections(weight: Tensor, mask: Tensor, order: torch.Generator) -> None:
    """Let the weakest fifth die, and as many grow elsewhere, where chance wants it."""
    alive = mask.flatten().nonzero()[:, 0]
    n = len(alive) // 5
    weakest = alive[weight.abs().flatten()[alive].argsort()[:n]]
    free = (mask.flatten() == 0).nonzero()[:, 0]
    grown = free[torch.randperm(len(free), generator=order)[:n]]
    mask.view(-1)[weakest] = 0.0
    mask.view(-1)[grown] = 1.0


@eighth.healthy
def connections_that_move(t: Training) -> None:
    """Nine of ten weights are zero: the weakest die, others grow; SET, Mocanu 2018."""
    split = digits()
    model, criterion = mlp((64, 128, 128, 10)), nn.CrossEntropyLoss()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)][:2]
    masks = []
    for layer in layers:
        masks.append((torch.rand(layer.weight.shape, generator=t.order) < 0.1).float())
        with torch.no_grad():
            layer.weight.mul_(masks[-1] * 3)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    t.watch(model, criterion)
    for layer, mask in zip(layers, masks, strict=True):
        layer.weight.register_hook(lambda grad, mask=mask: grad * mask)
    for step in t.steps(400):
        rows = t.draw(len(split.x), 64)
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        for layer, mask in zip(layers, masks, strict=True):
            if step % 40 == 39 and step < 300:
                move_connections(layer.weight.detach(), mask, t.order)
            with torch.no_grad():
                layer.weight.mul_(mask)
    right = share_of(model, split)
    t.note(right=right)
    t.learned(right > 0.9)


@eighth.healthy
def echoes_of_a_reservoir(t: Training) -> None:
    """A frozen recurrent network drawn by chance, and a layer that reads it.

    Jaeger 2001.  The next value of a chaotic series (Mackey and Glass).
    """
    series = [1.2] * 18
    for _ in range(1500):
        late = series[-18]
        series.append(series[-1] + 0.2 * late / (1 + late**10) - 0.1 * series[-1])
    x = torch.tensor(series[100:])
    x = (x - x.mean()) / x.std()

    class Reservoir(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.read = nn.RNNCell(1, 100), nn.Linear(100, 1)
            with torch.no_grad():
                self.cell.weight_hh.normal_(0, 0.9 / 10)
            self.cell.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            h, out = x.new_zeros(len(x), 100), []
            for step in x.unbind(1):
                h = self.cell(step[:, None], h)
                out.append(h)
            read: Tensor = self.read(torch.stack(out[20:], 1))
            return read[..., 0]

    model, criterion = Reservoir(), nn.MSELoss()
    optimizer = Adam(model.read.parameters(), 1e-2)
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(250):
        at = torch.randint(len(x) - 41, (32, 1), generator=t.order) + torch.arange(41)
        loss = criterion(model(x[at[:, :-1]]), x[at[:, 21:]])
        losses.append(descend(optimizer, loss))
    t.learned(fell(t, losses, 0.1))


@eighth.healthy
def old_pictures_among_the_new(t: Training) -> None:
    """Five pairs of classes, one after the other; half of a batch is from before.

    Continual learning by replay; Rolnick 2019.  The loss jumps at each new pair.
    """
    split = digits()
    model, criterion = mlp((64, 96, 10)), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    t.watch(model, criterion)
    of_task = [torch.nonzero(split.y // 2 == task).flatten() for task in range(5)]
    kept: list[Tensor] = []
    for step in t.steps(500):
        task, place = divmod(step, 100)
        if task and not place:
            kept.append(of_task[task - 1][t.draw(len(of_task[task - 1]), 60)])
        rows = of_task[task][t.draw(len(of_task[task]), 32)]
        if kept:
            memory = torch.cat(kept)
            rows = torch.cat((rows, memory[t.draw(len(memory), 32)]))
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    right = share_of(model, split)
    t.note(right=right)
    t.learned(right > 0.8)


@eighth.healthy
def grows_while_it_learns(t: Training) -> None:
    """A second block is faded in after 150 steps, a third after 300; Karras 2018.

    Blocks wait in the model and in the optimizer until they are needed.
    """
    split = wine()

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin, self.end = nn.Linear(13, 32), nn.Linear(32, 3)
            self.blocks = nn.ModuleList(mlp((32, 32, 32)) for _ in range(2))
            self.weights = [0.0, 0.0]

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.begin(x))
            for block, weight in zip(self.blocks, self.weights, strict=True):
                if weight > 0:
                    h = h + weight * block(h)
            out: Tensor = self.end(h)
            return out

    model, criterion = Growing(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 1e-3)
    t.watch(model, criterion)
    for step in t.steps(400):
        for k in range(2):
            model.weights[k] = min(1.0, max(0.0, (step - 150 * (k + 1)) / 50))
        rows = t.draw(len(split.x), 32)
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    right = share_of(model, split)
    t.note(right=right)
    t.learned(right > 0.9)
