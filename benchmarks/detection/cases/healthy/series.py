"""Healthy models of series: scans, convolutions, chains, and what fills a gap."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import fifth
from benchmarks.detection.kit.data import N_CHARACTERS, digits, encode, text
from benchmarks.detection.kit.loops import noted_accuracy, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Diagonal(nn.Module):
    """S4D: states of a channel decay and turn by fixed laws; Gu 2022.

    All channels begin with the same decays and turns (S4D-Lin), as meant.
    """

    def __init__(self, width: int, n_states: int = 16) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((width, n_states), math.log(0.5)))
        self.turn = nn.Parameter(math.pi * torch.arange(n_states).repeat(width, 1))
        self.out = nn.Parameter(torch.randn(width, n_states, 2) / n_states**0.5)
        self.pace = nn.Parameter(torch.empty(width).uniform_(-4.5, -1.5))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        pole = torch.complex(-self.decay.exp(), self.turn)
        step = pole * self.pace.exp()[:, None]
        weight = torch.view_as_complex(self.out) * (step.exp() - 1) / pole
        powers = (step[..., None] * torch.arange(length)).exp()
        kernel = 2 * (weight[..., None] * powers).sum(1).real
        series = torch.fft.rfft(x.transpose(1, 2), 2 * length)
        mixed = series * torch.fft.rfft(kernel, 2 * length)
        seen = torch.fft.irfft(mixed, 2 * length)[..., :length].transpose(1, 2)
        return seen + self.skip * x


class Scans(nn.Module):
    """Two layers of states over 64 pixels, one after the other."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, width), nn.Linear(width, 10)
        self.scans = nn.ModuleList(Diagonal(width) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels[..., None])
        for scan, mix, norm in zip(self.scans, self.mixes, self.norms, strict=True):
            x = x + mix(nn.functional.gelu(scan(norm(x))))
        out: Tensor = self.head(x.mean(1))
        return out


@fifth.healthy
def diagonal_state_space(t: Training) -> None:
    """Digits read pixel by pixel; states have a tenth of the rate and no decay.

    The first two hundred steps only. Learned: more than four times chance.
    """
    split, model, criterion = digits(), Scans(), nn.CrossEntropyLoss()
    states = [p for n, p in model.named_parameters() if "scans" in n]
    others = [p for n, p in model.named_parameters() if "scans" not in n]
    optimizer = AdamW(
        [
            {"params": others},
            {"params": states, "lr": 1e-3, "weight_decay": 0.0},
        ],
        1e-2,
        weight_decay=0.01,
    )
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 32)
        return criterion(model(split.x[rows]), split.y[rows])

    train(t, loss_of, optimizer, n_steps=200)
    t.learned(noted_accuracy(t, model, split) > 0.45)


class Selective(nn.Module):
    """Mamba's scan: how fast a state forgets depends on the token; Gu and Dao 2023."""

    def __init__(self, n_tokens: int, width: int = 32, n_states: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        rates = torch.arange(1, n_states + 1).float().log().repeat(width, 1)
        self.rates = nn.Parameter(rates)
        self.pace = nn.Linear(width, width)
        self.into, self.out = nn.Linear(width, n_states), nn.Linear(width, n_states)
        self.gate, self.head = nn.Linear(width, width), nn.Linear(width, n_tokens)
        nn.init.constant_(self.pace.bias, -2.0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        pace = nn.functional.softplus(self.pace(x))[..., None]
        forget = (-pace * self.rates.exp()).exp()
        write = pace * self.into(x)[:, :, None] * x[..., None]
        state, seen = torch.zeros_like(write[:, 0]), []
        read = self.out(x)
        for k in range(tokens.shape[1]):
            state = forget[:, k] * state + write[:, k]
            seen.append((state * read[:, k, None]).sum(-1))
        y = torch.stack(seen, 1) * nn.functional.silu(self.gate(x))
        out: Tensor = self.head(x + y)
        return out


@fifth.healthy
def selective_scan(t: Training) -> None:
    """Which token came after this one the last time?  Associative recall by a scan.

    Keys and values alternate; the loss counts only where a key comes again. Learned:
    four times chance.
    """
    model, criterion = Selective(12), nn.CrossEntropyLoss(ignore_index=-1)
    t.watch(model, criterion)

    def lines(n: int) -> tuple[Tensor, Tensor]:
        value = torch.randint(6, 12, (n, 6), generator=t.order)
        key = torch.randint(2, (n, 12), generator=t.order)
        line = torch.stack((key, value.gather(1, key)), 2).flatten(1)
        wanted = torch.full_like(line, -1)
        for k in range(2, 12):
            again = (key[:, :k] == key[:, k, None]).any(1)
            wanted[again, 2 * k] = line[again, 2 * k + 1]
        return line, wanted

    def loss_of(_: int) -> Tensor:
        line, wanted = lines(32)
        return criterion(model(line).transpose(1, 2), wanted)

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=300)
    line, wanted = lines(200)
    with torch.no_grad():
        right = (model(line).argmax(2) == wanted)[wanted >= 0].float().mean()
    t.note(right=float(right))
    t.learned(right > 0.6)


def seasons(n: int = 200, length: int = 60) -> Tensor:
    """Generated like monthly sales: a level, a trend, and a season of 12."""
    data = torch.Generator().manual_seed(3)
    when = torch.arange(length).float()
    phase = 6.3 * torch.rand(n, 1, generator=data)
    trend = 0.03 * torch.randn(n, 1, generator=data) * when
    wave = (2 * math.pi * when / 12 + phase).sin()
    return trend + wave + 0.2 * torch.randn(n, length, generator=data)


@fifth.healthy
def backcasts_and_forecasts(t: Training) -> None:
    """N-BEATS: each block explains a part of the window and foretells; Oreshkin 2020.

    Learned: less error than by repeating what was a season ago.
    """
    series, criterion = seasons(), nn.SmoothL1Loss()
    blocks = nn.ModuleList(mlp((24, 48, 48, 36)) for _ in range(3))
    t.watch(blocks, criterion)

    def foretold(window: Tensor) -> Tensor:
        said = torch.zeros(len(window), 12)
        for block in blocks:
            back, forth = block(window).split((24, 12), 1)
            window, said = window - back, said + forth
        return said

    def loss_of(_: int) -> Tensor:
        rows, at = t.draw(150, 64), int(t.draw(24, 1))
        part = series[rows, at : at + 36]
        return criterion(foretold(part[:, :24]), part[:, 24:])

    train(t, loss_of, Adam(blocks.parameters(), 2e-3), n_steps=300)
    last = series[150:, 24:]
    with torch.no_grad():
        error = (foretold(last[:, :24]) - last[:, 24:]).pow(2).mean()
    naive = (last[:, 12:24] - last[:, 24:]).pow(2).mean()
    t.note(error=float(error), naive=float(naive))
    t.learned(error < 0.8 * naive)


@fifth.healthy
def parameters_of_the_next_value(t: Training) -> None:
    """DeepAR: a GRU gives mean and deviation of the next value; Salinas 2020.

    The likelihood passes through zero. Learned: it beats a Gaussian around the last.
    """
    series = seasons()
    cell, head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 2)
    model, criterion = nn.ModuleDict({"cell": cell, "head": head}), nn.GaussianNLLLoss()
    t.watch(model, criterion)

    def cost(part: Tensor) -> Tensor:
        middle, width = head(cell(part[:, :-1, None])[0]).unbind(-1)
        variance = nn.functional.softplus(width) + 1e-3
        return criterion(middle[:, 8:], part[:, 9:], variance[:, 8:])

    train(
        t,
        lambda _: cost(series[t.draw(150, 32), :40]),
        Adam(model.parameters(), 1e-2),
        n_steps=200,
    )
    last = series[150:, :40]
    with torch.no_grad():
        reached = float(cost(last))
    change = last[:, 9:] - last[:, 8:-1]
    naive = float(criterion(last[:, 8:-1], last[:, 9:], change.var().expand(50, 31)))
    t.note(validation=reached, naive=naive)
    t.learned(reached < naive - 0.2)


class Causal(nn.Module):
    """Dilated convolutions that see the past only; Bai 2018 (TCN)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        sizes = [2, width, width, width, width]
        self.layers = nn.ModuleList(
            nn.Conv1d(sizes[k], sizes[k + 1], 3, dilation=2**k) for k in range(4)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            seen = layer(nn.functional.pad(x, (2 * 2**k, 0))).relu()
            x = seen if k == 0 else x + seen
        out: Tensor = self.head(x[..., -1])
        return out


@fifth.healthy
def adds_two_marked_numbers(t: Training) -> None:
    """The adding problem of length 30 by a temporal convolutional network.

    For a while nothing but the mean is learned. Learned: half of the variance.
    """
    model, criterion = Causal(), nn.MSELoss()
    t.watch(model, criterion)

    def problems(n: int) -> tuple[Tensor, Tensor]:
        value, mark = torch.rand(n, 30, generator=t.order), torch.zeros(n, 30)
        first = torch.randint(15, (n, 1), generator=t.order)
        mark.scatter_(1, first, 1.0)
        mark.scatter_(1, first + 15, 1.0)
        return torch.stack((value, mark), 1), (value * mark).sum(1, keepdim=True)

    def loss_of(_: int) -> Tensor:
        x, y = problems(64)
        return criterion(model(x), y)

    train(t, loss_of, Adam(model.parameters(), 4e-3), n_steps=400)
    x, y = problems(500)
    with torch.no_grad():
        left = float(criterion(model(x), y) / y.var())
    t.note(unexplained=left)
    t.learned(left < 0.5)


@fifth.healthy
def ordinary_differential_equation(t: Training) -> None:
    """A neural ODE learns a spiral from short pieces of it; Chen 2018.

    Runge-Kutta steps; the sources' own example. Learned: a tenth of standing still.
    """
    law = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    when = torch.linspace(0, 6, 121)
    true = torch.stack([torch.linalg.matrix_exp(law.T * k) for k in when])
    true = torch.tensor([2.0, 0.0]) @ true
    model = mlp((2, 48, 2), nn.Tanh)
    t.watch(model)

    def runs(x: Tensor, n: int) -> Tensor:
        path = [x]
        for _ in range(n):
            a = model(x)
            b = model(x + 0.025 * a)
            c = model(x + 0.025 * b)
            d = model(x + 0.05 * c)
            x = x + 0.05 * (a + 2 * b + 2 * c + d) / 6
            path.append(x)
        return torch.stack(path)

    def loss_of(_: int) -> Tensor:
        begin = t.draw(110, 32)
        wanted = torch.stack([true[begin + k] for k in range(11)])
        return (runs(true[begin], 10) - wanted).abs().mean()

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=150)
    begin = torch.arange(0, 100)
    wanted = true[begin + 20]
    with torch.no_grad():
        error = (runs(true[begin], 20)[-1] - wanted).pow(2).mean()
    still = (true[begin] - wanted).pow(2).mean()
    t.note(error=float(error), standing_still=float(still))
    t.learned(error < 0.1 * still)


@fifth.healthy
def chain_of_labels(t: Training) -> None:
    """A conditional random field over an LSTM: code, or a string?  Lample 2016.

    Labels of characters by quotation marks; most are of one class. Learned: the
    likelihood beats the constant answer's.
    """
    stream = text()
    quote = stream == encode('"')
    inside = (quote.cumsum(0) % 2).long()
    embedding, head = nn.Embedding(N_CHARACTERS, 16), nn.Linear(32, 2)
    cell = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
    model = nn.ModuleDict({"embedding": embedding, "cell": cell, "head": head})
    moves = nn.Parameter(torch.zeros(2, 2))
    model.register_parameter("moves", moves)
    t.watch(model)

    def cost(rows: Tensor, labels: Tensor) -> Tensor:
        score = head(cell(embedding(rows))[0])
        path = score.gather(2, labels[..., None]).sum((1, 2))
        path = path + moves[labels[:, :-1], labels[:, 1:]].sum(1)
        total = score[:, 0]
        for k in range(1, rows.shape[1]):
            total = (total[:, :, None] + moves).logsumexp(1) + score[:, k]
        return (total.logsumexp(1) - path).mean() / rows.shape[1]

    def batch(first: int, n: int, size: int) -> tuple[Tensor, Tensor]:
        at = first + t.draw(n, size)[:, None] + torch.arange(24)
        return stream[at], inside[at]

    split = len(stream) * 3 // 4
    train(
        t,
        lambda _: cost(*batch(0, split, 32)),
        Adam(model.parameters(), 1e-2),
        n_steps=150,
    )
    rows, labels = batch(split, len(stream) - split - 25, 200)
    with torch.no_grad():
        reached = float(cost(rows, labels))
    share = float(inside[:split].float().mean())
    constant = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    t.note(validation=reached, constant=constant)
    t.learned(reached < 0.6 * constant)


@fifth.healthy
def points_at_the_next(t: Training) -> None:
    """A pointer network sorts six numbers; Vinyals 2015. Learned: twice chance."""
    encoder, decoder = nn.GRU(1, 48, batch_first=True), nn.GRUCell(1, 48)
    key, ask, score = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 1)
    model = nn.ModuleDict(
        {"encoder": encoder, "decoder": decoder, "key": key, "ask": ask, "score": score}
    )
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def pointed(x: Tensor, order: Tensor) -> Tensor:
        seen, state = encoder(x[..., None])
        state, last, said = state[0], torch.zeros(len(x), 1), []
        for k in range(6):
            state = decoder(last, state)
            both = key(seen) + ask(state)[:, None]
            said.append(score(both.tanh())[..., 0])
            last = x.gather(1, order[:, k, None])
        return torch.stack(said, 1)

    def loss_of(_: int) -> Tensor:
        x = torch.rand(64, 6, generator=t.order)
        order = x.argsort(1)
        return criterion(pointed(x, order).flatten(0, 1), order.flatten())

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=250)
    x = torch.rand(500, 6, generator=t.order)
    order = x.argsort(1)
    with torch.no_grad():
        right = (pointed(x, order).argmax(2) == order).float().mean()
    t.note(right=float(right))
    t.learned(right > 0.5)


@fifth.healthy
def time_of_the_next_event(t: Training) -> None:
    """A recurrent point process; Du 2016 (RMTPP), exponential intensity.

    The loss may be negative. Learned: it beats a Poisson process.
    """
    data = torch.Generator().manual_seed(9)
    gaps = torch.empty(300, 30)
    excited = torch.zeros(300)
    for k in range(30):
        rate = 0.5 + 3 * excited
        gaps[:, k] = -torch.rand(300, generator=data).log() / rate
        excited = 0.5 * excited + (gaps[:, k] < 0.5).float() * 0.5
    cell, head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)
    model = nn.ModuleDict({"cell": cell, "head": head})
    t.watch(model)

    def cost(part: Tensor) -> Tensor:
        seen = cell((part[:, :-1, None] + 0.01).log())[0]
        rate = head(seen)[..., 0]
        return (rate.exp() * part[:, 1:] - rate).mean()

    train(
        t,
        lambda _: cost(gaps[t.draw(220, 32)]),
        Adam(model.parameters(), 5e-3),
        n_steps=200,
    )
    with torch.no_grad():
        reached = float(cost(gaps[220:]))
    poisson = float(gaps[220:, 1:].mean().log() + 1)
    t.note(validation=reached, poisson=poisson)
    t.learned(reached < poisson - 0.03)


@fifth.healthy
def tells_the_next_half_apart(t: Training) -> None:
    """Contrastive predictive coding over the rows of a picture; Oord 2018.

    The upper rows are to tell their own lower rows from those of 63 others. Learned:
    five times chance on held-out pictures.
    """
    split = digits()
    embed, cell = mlp((8, 48, 24)), nn.GRU(24, 48, batch_first=True)
    guess = nn.Linear(48, 3 * 24)
    model = nn.ModuleDict({"embed": embed, "cell": cell, "guess": guess})
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def likeness(x: Tensor) -> Tensor:
        rows = embed(x.view(-1, 8, 8))
        context = cell(rows[:, :5])[0][:, -1]
        said = guess(context).view(-1, 3, 24)
        return torch.einsum("ikd,jkd->kij", said, rows[:, 5:])

    def loss_of(_: int) -> Tensor:
        alike = likeness(split.x[t.draw(len(split.x), 64)])
        return criterion(alike.flatten(0, 1), torch.arange(64).repeat(3))

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        alike = likeness(split.x_val[:64])
    right = float((alike.argmax(2) == torch.arange(64)).float().mean())
    t.note(right=right)
    t.learned(right > 0.08)
