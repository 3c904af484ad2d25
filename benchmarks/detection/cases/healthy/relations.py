"""Healthy trainings on graphs, sets, pairs and rankings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import seventh
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import descend, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def above(high: Tensor, low: Tensor) -> float:
    """How often one of the first is above one of the second (AUC)."""
    return float((high[:, None] > low[None]).float().mean())


def neighbours(x: Tensor, n: int = 6) -> Tensor:
    """Pairs (2, m) of rows that are near each other."""
    near = torch.cdist(x, x).topk(n + 1, largest=False).indices[:, 1:]
    return torch.stack((torch.arange(len(x)).repeat_interleave(n), near.flatten()))


class GraphAttention(nn.Module):
    """Two heads of attention to neighbours; Velickovic 2018."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.project = nn.Linear(n_in, 2 * n_out, bias=False)
        self.asking = nn.Parameter(0.1 * torch.randn(2, n_out))
        self.asked = nn.Parameter(0.1 * torch.randn(2, n_out))
        self.leaky = nn.LeakyReLU(0.2)

    def forward(self, x: Tensor, joined: Tensor) -> Tensor:
        h = self.project(x).view(len(x), 2, -1)
        score = (h * self.asking).sum(2)[:, None] + (h * self.asked).sum(2)[None]
        score = self.leaky(score).masked_fill(~joined[:, :, None], -1e9)
        return torch.einsum("ijh,jhd->ihd", score.softmax(1), h).flatten(1)


@seventh.healthy
def attends_to_its_neighbours(t: Training) -> None:
    """Graph attention: near digits are joined, 60 labels are known.

    Learned: most of the others are classified rightly.
    """
    x, y = digits().x[:250], digits().y[:250]
    joined = torch.eye(250, dtype=torch.bool)
    a, b = neighbours(x)
    joined[a, b] = joined[b, a] = True
    first, second = GraphAttention(64, 16), GraphAttention(32, 10)
    model, criterion = nn.ModuleList([first, second]), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def said() -> Tensor:
        out: Tensor = second(nn.functional.elu(first(x, joined)), joined)
        return out.view(250, 2, 10).mean(1)

    optimizer = Adam(model.parameters(), 5e-3, weight_decay=5e-4)
    train(t, lambda _: criterion(said()[:60], y[:60]), optimizer, n_steps=150)
    with torch.no_grad():
        right = float((said()[60:].argmax(1) == y[60:]).float().mean())
    t.note(right=right)
    t.learned(right > 0.7)


@seventh.healthy
def foretells_edges(t: Training) -> None:
    """Link prediction: graph convolutions, products, as many false edges; Kipf 2016.

    Learned: held-out edges score above pairs that are not joined.
    """
    x = digits().x[:600]
    edges = neighbours(x)
    edges = edges[:, torch.randperm(edges.shape[1], generator=t.order)]
    known, held = edges[:, :3000], edges[:, 3000:]
    near = torch.eye(600)
    near[known[0], known[1]] = near[known[1], known[0]] = 1.0
    scale = near.sum(1).rsqrt()
    near = scale[:, None] * near * scale
    model = nn.ModuleList([nn.Linear(64, 48), nn.Linear(48, 24)])
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)

    def scores(pairs: Tensor) -> Tensor:
        h = near @ model[1](torch.relu(near @ model[0](x)))
        return (h[pairs[0]] * h[pairs[1]]).sum(1)

    def loss_of(_: int) -> Tensor:
        real = known[:, t.draw(3000, 256)]
        both = torch.cat((real, torch.randint(600, (2, 256))), 1)
        return criterion(scores(both), (torch.arange(512) < 256).float())

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=300)
    with torch.no_grad():
        auc = above(scores(held), scores(torch.randint(600, (2, 500))))
    t.note(auc=auc)
    t.learned(auc > 0.85)


@seventh.healthy
def tree_in_a_ball(t: Training) -> None:
    """Poincare embeddings of a tree of 127 nodes; Nickel and Kiela 2017.

    Steps are scaled by the metric, and points pulled back into the ball. Learned:
    parents are nearer than other nodes.
    """
    child = torch.arange(1, 127)
    parent = (child - 1) // 2
    table = nn.Embedding(127, 2)
    nn.init.uniform_(table.weight, -1e-3, 1e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(table, criterion)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        gap = ((a - b) ** 2).sum(-1)
        edge = (1 - (a**2).sum(-1)) * (1 - (b**2).sum(-1))
        return torch.acosh(1 + 2 * gap / edge + 1e-7)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(126, 64)
        others = torch.randint(127, (64, 10), generator=t.order)
        near = table(torch.cat((parent[rows, None], others), 1))
        scores = -distance(table(child[rows])[:, None], near)
        return criterion(scores, torch.zeros(64, dtype=torch.long))

    def on_the_ball() -> None:
        w = table.weight
        if w.grad is not None:
            w.grad *= ((1 - (w.detach() ** 2).sum(1, keepdim=True)) ** 2) / 4

    def pull_back(_: int) -> None:
        with torch.no_grad():
            norm = table.weight.norm(dim=1, keepdim=True)
            table.weight.mul_((0.999 / norm).clamp(max=1.0))

    train(
        t,
        loss_of,
        torch.optim.SGD(table.parameters(), 3.0),
        n_steps=500,
        after_backward=on_the_ball,
        after_step=pull_back,
    )
    with torch.no_grad():
        every = distance(table.weight[child][:, None], table.weight[None])
        rank = (every < every.gather(1, parent[:, None])).float().sum(1).mean()
    t.note(rank=float(rank))
    t.learned(float(rank) < 32)


def bought(t: Training, n_users: int = 200, n_things: int = 300) -> tuple[Tensor, ...]:
    """Who likes what, by hidden tastes: (users, things) to learn from, and new ones."""
    luck = torch.Generator().manual_seed(t.seed)
    users = torch.randn(n_users, 4, generator=luck)
    things = torch.randn(n_things, 4, generator=luck)
    liked = (users @ things.T).topk(25).indices
    who = torch.arange(n_users).repeat_interleave(25)
    order = torch.randperm(len(who), generator=luck)
    pairs = torch.stack((who, liked.flatten()))[:, order]
    return pairs[:, :4000], pairs[:, 4000:]


@seventh.healthy
def ranks_what_was_bought(t: Training) -> None:
    """BPR: a thing that was bought scores above one that was not; Rendle 2009.

    Learned: held-out things score above others.
    """
    known, held = bought(t)
    model = nn.ModuleDict({"user": nn.Embedding(200, 8), "thing": nn.Embedding(300, 8)})
    for table in model.children():
        nn.init.normal_(table.weight, std=0.1)
    t.watch(model)

    def score(who: Tensor, what: Tensor) -> Tensor:
        out: Tensor = (model["user"](who) * model["thing"](what)).sum(1)
        return out

    def loss_of(_: int) -> Tensor:
        who, what = known[:, t.draw(4000, 256)]
        other = torch.randint(300, (256,), generator=t.order)
        gap = score(who, what) - score(who, other)
        return -nn.functional.logsigmoid(gap).mean()

    optimizer = Adam(model.parameters(), 1e-2, weight_decay=1e-5)
    train(t, loss_of, optimizer, n_steps=400)
    with torch.no_grad():
        who, what = held
        good = score(who, what)
        auc = float((good > score(who, torch.randint(300, (len(who),)))).float().mean())
    t.note(auc=auc)
    t.learned(auc > 0.75)


@seventh.healthy
def redundancy_reduced(t: Training) -> None:
    """Barlow Twins: two views correlate, columns do not; Zbontar 2021.

    Learned: the nearest digit in the embedding is of the same class.
    """
    split = digits()
    body = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(96, 64))
    t.watch(model)

    def view(x: Tensor) -> Tensor:
        return (x + 0.25 * torch.randn_like(x)) * (torch.rand_like(x) > 0.15)

    def loss_of(_: int) -> Tensor:
        x = split.x[t.draw(len(split.x), 128)]
        a, b = (model(view(x)) for _ in "ab")
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (a, b))
        cross = a.T @ b / len(x)
        on = torch.diagonal(cross)
        return ((1 - on) ** 2).sum() + 5e-3 * ((cross**2).sum() - (on**2).sum())

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=250)
    model.eval()
    with torch.no_grad():
        known, asked = body(split.x), body(split.x_val)
    nearest = torch.cdist(asked, known).argmin(1)
    right = float((split.y[nearest] == split.y_val).float().mean())
    t.note(right=right)
    t.learned(right > 0.85)


@seventh.healthy
def sets_of_points(t: Training) -> None:
    """PointNet: 24 points drawn from the ink of a digit, the largest of each feature.

    Qi 2017. Learned: more than half of new sets are recognized.
    """
    split = digits()
    places = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)) / 3.5 - 1
    each, head = mlp((2, 48, 96)), mlp((96, 48, 10))
    model, criterion = (
        nn.ModuleDict({"each": each, "head": head}),
        nn.CrossEntropyLoss(),
    )
    t.watch(model, criterion)

    def said(x: Tensor) -> Tensor:
        drawn = places[torch.multinomial(x, 24, replacement=True)]
        out: Tensor = head(each(drawn + 0.05 * torch.randn_like(drawn)).amax(1))
        return out

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=500)
    with torch.no_grad():
        right = float((said(split.x_val).argmax(1) == split.y_val).float().mean())
    t.note(right=right)
    t.learned(right > 0.5)


@seventh.healthy
def remembers_by_association(t: Training) -> None:
    """A modern Hopfield layer completes digits that are half hidden; Ramsauer 2021.

    Its stored patterns are parameters. Learned: a quarter of
    the variance of what was hidden is explained.
    """
    split = digits()
    query, stored = nn.Linear(64, 32), nn.Parameter(0.1 * torch.randn(128, 32))
    model = nn.ParameterDict({"stored": stored})
    whole = nn.ModuleDict({"query": query, "memory": model, "out": nn.Linear(32, 64)})
    criterion = nn.MSELoss()
    t.watch(whole, criterion)

    def completed(x: Tensor) -> Tensor:
        state = query(x)
        for _ in range(2):
            state = state + (2.0 * state @ stored.T).softmax(1) @ stored
        out: Tensor = whole["out"](state)
        return out

    def hidden(x: Tensor) -> Tensor:
        return x * (torch.arange(64) < 32)

    def loss_of(_: int) -> Tensor:
        x = split.x[t.draw(len(split.x), 64)]
        return criterion(completed(hidden(x)), x)

    train(t, loss_of, Adam(whole.parameters(), 5e-3), n_steps=400)
    with torch.no_grad():
        error = (completed(hidden(split.x_val)) - split.x_val)[:, 32:]
    left = float((error**2).mean() / split.x_val[:, 32:].var(0).mean())
    t.note(left=left)
    t.learned(left < 0.75)


@seventh.healthy
def temperature_at_its_limit(t: Training) -> None:
    """CLIP's loss: upper and lower halves of digits; the scale is clamped at 20.

    Radford 2021. It is soon at the limit, and stays there. Learned: the right lower
    half is found ten times as often as by chance.
    """
    split = digits()
    upper, lower = mlp((32, 96, 32)), mlp((32, 96, 32))
    scale = nn.Parameter(torch.tensor([[2.9]]))
    model = nn.ModuleDict({"upper": upper, "lower": lower})
    model.register_parameter("scale", scale)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def alike(x: Tensor) -> Tensor:
        a, b = upper(x[:, :32]), lower(x[:, 32:])
        a, b = (nn.functional.normalize(z, dim=1) for z in (a, b))
        return scale.exp() * a @ b.T

    def loss_of(_: int) -> Tensor:
        scores = alike(split.x[t.draw(len(split.x), 64)])
        which = torch.arange(64)
        return (criterion(scores, which) + criterion(scores.T, which)) / 2

    def limit(_: int) -> None:
        with torch.no_grad():
            scale.clamp_(0.0, 2.9957)

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300, after_step=limit)
    with torch.no_grad():
        found = alike(split.x_val[:200]).argmax(1) == torch.arange(200)
    t.note(found=float(found.float().mean()))
    t.learned(float(found.float().mean()) > 0.05)


@seventh.healthy
def short_texts_first(t: Training) -> None:
    """Sets of 2 to 20 digits, sorted by length on purpose: how many are fours?

    Each epoch begins with short ones (Platanios 2019). Learned: the mean error is less
    than half that of the mean.
    """
    split = digits()
    luck = torch.Generator().manual_seed(3)
    sizes = torch.randint(2, 21, (640,), generator=luck)
    members = torch.randint(len(split.x), (640, 20), generator=luck)
    inside = torch.arange(20) < sizes[:, None]
    wanted = ((split.y[members] == 4) & inside).sum(1)
    order = sizes.argsort()
    model, criterion = mlp((64, 64, 1)), nn.MSELoss()
    t.watch(model, criterion)
    optimizer = Adam(model.parameters(), 3e-3)
    losses = []
    for step in t.steps(400):
        rows = order[32 * (step % 20) : 32 * (step % 20) + 32]
        votes = model(split.x[members[rows]])[:, :, 0] * inside[rows]
        losses.append(
            descend(
                optimizer,
                criterion(votes.sum(1, keepdim=True), wanted[rows, None].float()),
            )
        )
    left = sum(losses[-20:]) / 20 / float(wanted.float().var())
    t.note(left=left)
    t.learned(left < 0.25)
