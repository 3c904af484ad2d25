"""Modules by hand: graphs in one batch, states of both directions, ways around."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import Split, digits
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import Loop, adam, descend, mean
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class Graph:
    """Nodes of four colours; equal ones are neighbours, or different ones (label 1)."""

    def __init__(self, luck: torch.Generator) -> None:
        n = int(torch.randint(10, 16, (), generator=luck))
        self.label = int(torch.randint(2, (), generator=luck))
        # One colour is more frequent where the label is 1: a hint without any edge.
        chances = torch.ones(4)
        chances[0] += 2.0 * self.label
        colour = torch.multinomial(chances, n, replacement=True, generator=luck)
        self.x = functional.one_hot(colour, 4).float()
        pairs = torch.combinations(torch.arange(n))
        alike = colour[pairs[:, 0]] == colour[pairs[:, 1]]
        likely = torch.where(alike == (self.label == 0), 0.4, 0.12)
        kept = pairs[torch.rand(len(pairs), generator=luck) < likely]
        self.edges = torch.cat((kept, kept.flip(1))).t()


class GraphNet(nn.Module):
    """Two rounds of sums over neighbours, and the mean over the nodes of a graph."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = mlp([8, width, width])
        self.second = mlp([2 * width, width, width])
        self.head = nn.Linear(width, 2)

    @staticmethod
    def around(x: Tensor, edges: Tensor) -> Tensor:
        """Each node beside the sum of its neighbours."""
        heard = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return torch.cat((x, heard), 1)

    def forward(self, x: Tensor, edges: Tensor, graph_of: Tensor) -> Tensor:
        x = self.first(self.around(x, edges)).relu()
        x = self.second(self.around(x, edges)).relu()
        n = int(graph_of.max()) + 1
        sums = torch.zeros(n, x.shape[1]).index_add(0, graph_of, x)
        counts = torch.bincount(graph_of, minlength=n)
        return self.head(sums / counts[:, None])


def one_graph(graphs: list[Graph], *, offset: bool) -> tuple[Tensor, Tensor, Tensor]:
    """All nodes, all edges, and whose node each is."""
    edges, graph_of, n = [], [], 0
    for i, graph in enumerate(graphs):
        edges.append(graph.edges + (n if offset else 0))
        graph_of.append(torch.full((len(graph.x),), i))
        n += len(graph.x)
    x = torch.cat([graph.x for graph in graphs])
    return x, torch.cat(edges, 1), torch.cat(graph_of)


@ninth.silent("mixes the batch", "edges of all graphs lead to nodes of the first")
def edges_without_an_offset(t: Training) -> None:
    """Graphs are put into one, and the numbers of their nodes stay what they were.

    Source: github.com/pyg-team/pytorch_geometric/issues/31, issues/594, issues/1499 and
    issues/2408 (attributes for which ``__inc__`` is not defined are not increased).
    Visible: what is said of a graph depends on the others, and of new graphs one by
    one fewer than 92 % are told rightly.
    """
    luck = torch.Generator().manual_seed(7)
    graphs = [Graph(luck) for _ in range(700)]
    known, new = graphs[:500], graphs[500:]
    model = GraphNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 4e-3)
    t.watch(model, criterion)
    losses: list[float] = []
    for _, rows in t.batches(220, len(known), 32):
        chosen = [known[i] for i in rows.tolist()]
        labels = torch.tensor([graph.label for graph in chosen])
        logits = model(*one_graph(chosen, offset=not t.sick))
        losses.append(descend(optimizer, criterion(logits, labels)))

    def told(of: list[Graph]) -> Tensor:
        return in_evaluation(model, lambda: model(*one_graph(of, offset=not t.sick)))

    alone = torch.cat([told([graph]) for graph in new])
    changed = float((told(new) - alone).abs().mean() / alone.std())
    labels = torch.tensor([graph.label for graph in new])
    right = float((alone.argmax(1) == labels).float().mean())
    t.note(
        changed=changed, right=right, begin=mean(losses[:20]), end=mean(losses[-20:])
    )
    conclude(t, fault=changed > 0.1, reached=right > 0.92)


class TwoWays(nn.Module):
    """Reads an image line by line in both directions, beside its column sums."""

    def __init__(self, *, viewed: bool, width: int = 24) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, width, batch_first=True, bidirectional=True)
        self.columns = nn.Linear(8, 16)
        self.out = mlp([2 * width + 16, 48, 10])
        self.viewed = viewed

    def forward(self, images: Tensor) -> Tensor:
        lines = images.view(-1, 8, 8)
        _, last = self.rnn(lines)
        if self.viewed:
            states = last.view(len(lines), -1)
        else:
            states = torch.cat((last[0], last[1]), 1)
        return self.out(torch.cat((states, self.columns(lines.sum(1)).relu()), 1))


@ninth.silent("mixes the batch", "h_n.view(batch, -1) has states of other rows")
def states_of_other_rows(t: Training) -> None:
    """``h_n`` is (directions, batch, width) and is viewed as (batch, everything).

    Source: discuss.pytorch.org/t/119521 and the threads that it refers to ("h_n.view"
    of a bidirectional LSTM), stackoverflow on ``h_n.view(batch_size, -1)``; Karpathy's
    list: "you thought view() and permute() are the same thing".
    Visible: what is said of an image depends on its place in the batch, and of new
    images fewer than 88 % are told rightly.
    """
    split = digits()
    model = TwoWays(viewed=t.sick)
    Loop(t, model, split, adam(4e-3), batch_size=32, validate_every=75).run(300)
    x = split.x_val[:300]
    forward = in_evaluation(model, lambda: model(x))
    backward = in_evaluation(model, lambda: model(x.flip(0))).flip(0)
    changed = float((forward - backward).abs().mean() / forward.std())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(changed=changed, accuracy=accuracy)
    conclude(t, fault=changed > 0.005, reached=accuracy > 0.88)


class BothEnds(nn.Module):
    """A bidirectional LSTM; its outputs at the last line tell."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 24, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(48, 10)
        self.ends = ends

    def features(self, images: Tensor) -> Tensor:
        """What the head is given."""
        out, _ = self.rnn(images.view(-1, 8, 8))
        if self.ends:
            return torch.cat((out[:, -1, :24], out[:, 0, 24:]), 1)
        return out[:, -1]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(images)))


@ninth.silent("one direction sees one step", "at the last place the way back has begun")
def way_back_has_just_begun(t: Training) -> None:
    """``out[:, -1]`` of a bidirectional LSTM: the way back has read the last line only.

    Source: discuss.pytorch.org/t/79498 and /t/10333; stackoverflow on
    ``output[:, -1, :]`` of bidirectional LSTMs.
    Visible: half of what the head is given does not depend on the lines before.
    """
    split = digits()
    model = BothEnds(ends=not t.sick)
    Loop(t, model, split, adam(6e-3), batch_size=32, validate_every=75).run(300)
    x = split.x_val[:100].clone()
    other = x.clone()
    other[:, :56] = x.flip(0)[:, :56]
    change = in_evaluation(model, lambda: model.features(x) - model.features(other))
    still = float((change.abs().amax(0) == 0).float().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(still=still, accuracy=accuracy)
    conclude(t, fault=still == 0.5, reached=accuracy > 0.9, harms=False)


class PreActivated(nn.Module):
    """Activations come before convolutions; what came in goes around them."""

    def __init__(self, width: int, *, inplace: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(inplace=inplace),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=inplace),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += x
        return out


@ninth.silent("a way around that is changed", "an in-place ReLU cuts the way around")
def way_around_is_rectified(t: Training) -> None:
    """``nn.ReLU(inplace=True)`` is the first layer of a block with a way around it.

    Source: github.com/rosinality/vq-vae-2-pytorch/issues/60 ("definitely it is a bug"),
    github.com/iduta/iresnet/pull/2, github.com/pytorch/vision/issues/807.
    Visible: what comes out of a block is not what came in plus the body's output.
    """
    split = digits()
    blocks = [PreActivated(12, inplace=t.sick) for _ in range(3)]
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 12, 3, padding=1, stride=2),
        *blocks,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    Loop(t, model, split, adam(5e-3), batch_size=32, validate_every=50).run(250)
    x = in_evaluation(model, lambda: model[:2](split.x_val))
    out = in_evaluation(model, lambda: model[2](x.clone()))
    body = in_evaluation(model, lambda: model[2].body(x.clone()))
    off = float((out - body - x).abs().max())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(off=off, accuracy=accuracy)
    conclude(t, fault=off > 1e-3, reached=accuracy > 0.88, harms=False)


class Denoiser(nn.Module):
    """Says which noise was added, given how much there is."""

    def __init__(self, n_pixels: int = 16, width: int = 96) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(n_pixels + 9, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, n_pixels),
        )

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        phase = at[:, None] * math.pi * 2.0 ** torch.arange(-1, 3)
        return self.inner(torch.cat((x, at[:, None], phase.sin(), phase.cos()), 1))


class Diffusion:
    """A schedule of noise, and how to draw without any picture."""

    def __init__(self, n: int = 60) -> None:
        self.n = n
        self.beta = torch.linspace(1e-3, 0.15, n)
        self.alpha = 1 - self.beta
        self.alpha_bar = self.alpha.cumprod(0)

    def noisy(self, x: Tensor, step: Tensor, noise: Tensor, *, root: bool) -> Tensor:
        """A picture after so many steps."""
        bar = self.alpha_bar[step][:, None]
        return bar.sqrt() * x + ((1 - bar).sqrt() if root else 1 - bar) * noise

    def draw(self, model: nn.Module, n: int, luck: torch.Generator) -> Tensor:
        """So many pictures out of noise."""
        x = torch.randn(n, 16, generator=luck)
        for step in reversed(range(self.n)):
            told = model(x, torch.full((n,), step / self.n))
            scale = self.beta[step] / (1 - self.alpha_bar[step]).sqrt()
            x = (x - scale * told) / self.alpha[step].sqrt()
            if step:
                x += self.beta[step].sqrt() * torch.randn(n, 16, generator=luck)
        return x


@ninth.silent("schedule of noise", "the noise is added without the root")
def noise_without_its_root(t: Training) -> None:
    """``x = ab.sqrt() * x + (1 - ab) * noise``.

    Source: github.com/Ryota-Kawamura/How-Diffusion-Models-Work/issues/1 (the notebook
    of a course: it should be ``(1 - ab).sqrt() * noise``), and
    github.com/lmnt-com/diffwave/issues/1.
    Visible: half-way the noisy pictures have less than 80 % of the deviation that they
    must have, and what is drawn is farther from any picture.
    """
    small: Split = digits().inputs(
        lambda x: functional.avg_pool2d(x.view(-1, 1, 8, 8), 2).flatten(1)
    )
    centre, scale = small.x.mean(0), small.x.std(0)
    x, x_val = (small.x - centre) / scale, (small.x_val - centre) / scale
    diffusion, model = Diffusion(), Denoiser()
    optimizer = Adam(model.parameters(), 2e-3)
    decay = CosineAnnealingLR(optimizer, 1500)
    t.watch(model)
    for _, rows in t.batches(1500, len(x), 64):
        step = torch.randint(diffusion.n, (len(rows),), generator=t.order)
        noise = torch.randn(len(rows), 16, generator=t.order)
        given = diffusion.noisy(x[rows], step, noise, root=not t.sick)
        told = model(given, step / diffusion.n)
        descend(optimizer, functional.mse_loss(told, noise), decay)
    luck = torch.Generator().manual_seed(9)
    half = int((diffusion.alpha_bar - 0.5).abs().argmin())
    middle = torch.full((len(x),), half)
    noise = torch.randn(len(x), 16, generator=luck)
    deviation = float(diffusion.noisy(x, middle, noise, root=not t.sick).std())
    drawn = in_evaluation(model, lambda: diffusion.draw(model, 200, luck))
    far = float(torch.cdist(drawn, x).min(1).values.mean())
    usual = float(torch.cdist(x_val, x).min(1).values.mean())
    t.note(deviation=deviation, far=far, usual=usual, spread=float(drawn.std()))
    conclude(t, fault=deviation < 0.93, reached=far < 1.6 * usual)
