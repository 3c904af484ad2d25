"""Healthy trainings by other ways than one loss, one backward, one step of Adam."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from benchmarks.detection.kit.case import fifth
from benchmarks.detection.kit.data import Split, digits
from benchmarks.detection.kit.loops import descend, mean, noted_accuracy, train
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, slope: Tensor) -> Tensor:
        del ctx
        return -slope


@fifth.healthy
def reversed_gradients(t: Training) -> None:
    """Domain-adversarial training: digits, and digits on a gray ground; Ganin 2016.

    The critic of domains is fought, more and more. Learned: digits of the
    other domain, whose labels nobody gives.
    """
    split = digits()
    other = split.inputs(lambda x: 0.75 * x + 0.15)
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    head, domain = nn.Linear(64, 10), mlp((64, 32, 1))
    model = nn.ModuleDict({"body": body, "head": head, "domain": domain})
    criterion, of_domain = nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()
    which = torch.cat((torch.zeros(64, 1), torch.ones(64, 1)))
    t.watch(model, criterion, of_domain)

    def loss_of(step: int) -> Tensor:
        much = 0.1 * (2 / (1 + math.exp(-step / 30)) - 1)
        rows, others = t.draw(len(split.x), 64), t.draw(len(other.x), 64)
        features = body(torch.cat((split.x[rows], other.x[others])))
        guess = domain(_Reversed.apply(features))
        return criterion(head(features[:64]), split.y[rows]) + much * of_domain(
            guess, which
        )

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=300)
    with torch.no_grad():
        right = (head(body(other.x_val)).argmax(1) == other.y_val).float().mean()
    t.note(other_domain=float(right))
    t.learned(right > 0.6)


@fifth.healthy
def clients_of_two_classes(t: Training) -> None:
    """Federated averaging; each of ten clients has two classes; McMahan 2017.

    The server's model is what is watched and stepped: the mean change of the clients
    is its gradient (Reddi 2021). Learned: all ten classes.
    """
    split = digits()
    model, criterion = mlp((64, 64, 10)), nn.CrossEntropyLoss()
    server = SGD(model.parameters(), 1.0)
    owned = [
        torch.nonzero((split.y == k) | (split.y == (k + 1) % 10))[:, 0]
        for k in range(10)
    ]
    client = copy.deepcopy(model)
    t.watch(model, criterion)
    for _ in t.steps(80):
        change = [torch.zeros_like(weight) for weight in model.parameters()]
        for k in torch.randperm(10, generator=t.order)[:5]:
            client.load_state_dict(model.state_dict())
            local = SGD(client.parameters(), 0.1)
            for _ in range(4):
                rows = owned[k][t.draw(len(owned[k]), 32)]
                descend(local, criterion(client(split.x[rows]), split.y[rows]))
            for total, new, old in zip(
                change, client.parameters(), model.parameters(), strict=True
            ):
                total.add_((old - new).detach() / 5)
        for weight, slope in zip(model.parameters(), change, strict=True):
            weight.grad = slope
        server.step()
    t.learned(noted_accuracy(t, model, split) > 0.7)


@fifth.healthy
def first_order_meta_learning(t: Training) -> None:
    """Reptile: weights move to where a few steps on a sine lead; Nichol 2018.

    Learned: after ten steps on ten points of a new sine, a better fit than from
    random weights.
    """
    model, criterion = mlp((1, 48, 48, 1), nn.Tanh), nn.MSELoss()
    outer = Adam(model.parameters(), 2e-3)
    fresh, inner = copy.deepcopy(model), copy.deepcopy(model)

    def sine() -> Callable[[Tensor], Tensor]:
        high, phase = torch.rand(2, generator=t.order) * torch.tensor([4.0, 3.1])
        return lambda x: (0.5 + high) * (x + phase).sin()

    def adapt(begin: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        inner.load_state_dict(begin.state_dict())
        descent = SGD(inner.parameters(), 0.02)
        for _ in range(10):
            descend(descent, criterion(inner(x), y))
        return inner

    t.watch(model, criterion)
    for _ in t.steps(350):
        task = sine()
        x = 10 * torch.rand(10, 1, generator=t.order) - 5
        adapted = adapt(model, x, task(x))
        for slow, fast in zip(model.parameters(), adapted.parameters(), strict=True):
            slow.grad = (slow - fast).detach()
        outer.step()
    left: list[list[float]] = [[], []]
    for _ in range(40):
        task = sine()
        x = 10 * torch.rand(10, 1, generator=t.order) - 5
        at = torch.linspace(-5, 5, 50)[:, None]
        for errors, begin in zip(left, (fresh, model), strict=True):
            adapted = adapt(begin, x, task(x))
            with torch.no_grad():
                errors.append(float(criterion(adapted(at), task(at))))
    t.note(from_random=mean(left[0]), reached=mean(left[1]))
    t.learned(mean(left[1]) < 0.9 * mean(left[0]))


@fifth.healthy
def weights_made_by_a_network(t: Training) -> None:
    """A hypernetwork makes a classifier for each angle of pictures; Ha 2016."""
    split = digits()
    maker = mlp((4, 32, 64 * 32 + 32 * 10))
    criterion = nn.CrossEntropyLoss()
    with torch.no_grad():
        maker[-1].weight.mul_(0.2)
    t.watch(maker, criterion)

    def said(x: Tensor, turn: int) -> Tensor:
        made = maker(torch.eye(4)[turn])
        first, last = made.split((64 * 32, 32 * 10))
        turned = x.view(-1, 8, 8).rot90(turn, (1, 2)).flatten(1)
        return (turned @ first.view(64, 32)).relu() @ last.view(32, 10)

    def loss_of(step: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows], step % 4), split.y[rows])

    train(t, loss_of, Adam(maker.parameters(), 2e-3), n_steps=300)
    with torch.no_grad():
        right = mean(
            [
                float((said(split.x_val, k).argmax(1) == split.y_val).float().mean())
                for k in range(4)
            ]
        )
    t.note(validation_accuracy=right)
    t.learned(right > 0.85)


@fifth.healthy
def winning_ticket(t: Training) -> None:
    """Weights are pruned by a first training, and begin anew; Frankle and Carbin 2019.

    Four of five weights of the first layers are zero and stay so.
    """
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = mlp((64, 96, 48, 10))
    begin = copy.deepcopy(model.state_dict())
    optimizer = Adam(model.parameters(), 3e-3)
    for _ in range(150):
        rows = t.draw(len(split.x), 64)
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    masks = {
        name: (w.abs() > w.abs().flatten().quantile(0.8)).float()
        for name, w in model.named_parameters()
        if w.ndim == 2 and len(w) > 10
    }
    model.load_state_dict(begin)

    def prune() -> None:
        with torch.no_grad():
            for name, w in model.named_parameters():
                w.mul_(masks.get(name, torch.ones(())))

    prune()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(model(split.x[rows]), split.y[rows])

    again = Adam(model.parameters(), 3e-3)
    train(t, loss_of, again, n_steps=250, after_step=lambda _: prune())
    t.learned(noted_accuracy(t, model, split) > 0.9)


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return slope / (1 + 5 * x.abs()) ** 2


@fifth.healthy
def spikes_with_surrogate_gradients(t: Training) -> None:
    """Leaky neurons that fire, ten moments a picture; Neftci 2019, snnTorch."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 10))

    def said(x: Tensor) -> Tensor:
        charge, out = torch.zeros(len(x), 96), torch.zeros(len(x), 10)
        total = torch.zeros(len(x), 10)
        current = model[0](2 * x)
        for _ in range(10):
            charge = 0.8 * charge + current
            fired = _Spike.apply(charge - 1)
            charge = charge - fired.detach()
            out = 0.8 * out + model[1](fired)
            total = total + out
        return total / 10

    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(said(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=200)
    with torch.no_grad():
        right = (said(split.x_val).argmax(1) == split.y_val).float().mean()
    t.note(validation_accuracy=float(right))
    t.learned(right > 0.85)


class Signs(nn.Linear):
    """Only the signs of weights count, and these are kept from -1 to 1."""

    def forward(self, x: Tensor) -> Tensor:
        sign = self.weight + (self.weight.sign() - self.weight).detach()
        return nn.functional.linear(x, sign / self.in_features**0.5, self.bias)


@fifth.healthy
def weights_of_one_bit(t: Training) -> None:
    """BinaryConnect: straight through, clamped after each step; Courbariaux 2015."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = nn.Sequential(
        Signs(64, 128), nn.BatchNorm1d(128), nn.Hardtanh(), Signs(128, 10)
    )
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(model(split.x[rows]), split.y[rows])

    def clamp(_: int) -> None:
        with torch.no_grad():
            for layer in (model[0], model[3]):
                layer.weight.clamp_(-1, 1)

    train(t, loss_of, Adam(model.parameters(), 1e-2), n_steps=300, after_step=clamp)
    t.learned(noted_accuracy(t, model, split) > 0.85)


class Muon(Optimizer):
    """Momentum that is made orthogonal by Newton-Schulz; Jordan 2024."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault(
                    "momentum", torch.zeros_like(weight)
                )
                momentum.mul_(0.95).add_(weight.grad)
                x = weight.grad.add(momentum, alpha=0.95)
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                weight.add_(x, alpha=-group["lr"] * max(1, len(x) / x.shape[1]) ** 0.5)


@fifth.healthy
def orthogonal_momentum(t: Training) -> None:
    """Muon for the matrices inside; Adam for the rest, as its author advises."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = mlp((64, 96, 96, 10))
    inside = [model[0].weight, model[2].weight]
    rest = [w for w in model.parameters() if all(w is not i for i in inside)]
    muon, adam = Muon(inside, 0.02), Adam(rest, 3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(split.x), 64):
        muon.zero_grad()
        adam.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        muon.step()
        adam.step()
    t.learned(noted_accuracy(t, model, split) > 0.93)


class Lamb(Optimizer):
    """Adam's direction, as long as a layer's weights allow; You 2020."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(n=0, m=torch.zeros_like(weight))
                    state["v"] = torch.zeros_like(weight)
                state["n"] += 1
                state["m"].lerp_(weight.grad, 0.1)
                state["v"].lerp_(weight.grad**2, 0.001)
                m = state["m"] / (1 - 0.9 ** state["n"])
                v = state["v"] / (1 - 0.999 ** state["n"])
                move = m / (v.sqrt() + 1e-6) + 0.01 * weight
                trust = weight.norm() / move.norm() if weight.norm() > 0 else 1.0
                weight.add_(trust * move, alpha=-group["lr"])


@fifth.healthy
def layers_trusted_by_their_norm(t: Training) -> None:
    """LAMB with batches of 512, its rate rising for 20 steps."""
    split, criterion = digits(), nn.CrossEntropyLoss()
    model = mlp((64, 96, 48, 10))
    optimizer = Lamb(model.parameters(), 0.02)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 512)
        return criterion(model(split.x[rows]), split.y[rows])

    train(t, loss_of, optimizer, n_steps=150, after_step=lambda _: rise.step())
    t.learned(noted_accuracy(t, model, split) > 0.9)


class Equilibrium(nn.Module):
    """A layer applied until nothing changes; the gradient is of one more; Bai 2019.

    The one-step gradient is that of Fung 2022 (JFB).
    """

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)
        with torch.no_grad():
            self.again.weight.mul_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        given = self.into(x)
        state = torch.zeros_like(given)
        with torch.no_grad():
            for _ in range(12):
                state = self.norm((self.again(state) + given).tanh())
        out: Tensor = self.head(self.norm((self.again(state) + given).tanh()))
        return out


@fifth.healthy
def deep_equilibrium(t: Training) -> None:
    """An implicit layer; what is called 13 times a forward has one gradient."""
    split, model, criterion = digits(), Equilibrium(), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        return criterion(model(split.x[rows]), split.y[rows])

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=200)
    t.learned(noted_accuracy(t, model, split) > 0.9)


def gray(split: Split) -> Tensor:
    """How much ink a picture has, with mean 0 and deviation 1."""
    ink = split.x.mean(1, keepdim=True)
    return (ink - ink.mean()) / ink.std()


@fifth.healthy
def tasks_weighed_by_uncertainty(t: Training) -> None:
    """Class and ink, each by a variance that is learned; Kendall 2018.

    The sum of both losses may be negative.
    """
    split, ink = digits(), gray(digits())
    body, classes, amount = mlp((64, 64, 64)), nn.Linear(64, 10), nn.Linear(64, 1)
    model = nn.ModuleDict({"body": body, "classes": classes, "amount": amount})
    variances = nn.Parameter(torch.zeros(2))
    model.register_parameter("variances", variances)
    criterion, error = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, criterion, error)

    def loss_of(_: int) -> Tensor:
        rows = t.draw(len(split.x), 64)
        seen = body(split.x[rows]).relu()
        both = criterion(classes(seen), split.y[rows]), error(amount(seen), ink[rows])
        first, second = variances
        return (
            (-first).exp() * both[0]
            + (-second).exp() * both[1] / 2
            + (first + second) / 2
        )

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=250)
    with torch.no_grad():
        right = classes(body(split.x_val).relu()).argmax(1) == split.y_val
    t.note(validation_accuracy=float(right.float().mean()))
    t.learned(right.float().mean() > 0.9)


@fifth.healthy
def fixed_random_feedback(t: Training) -> None:
    """Feedback alignment: errors come back through weights that never change.

    Lillicrap 2016. Gradients are set by hand, from two products of matrices.
    """
    split = digits()
    model = mlp((64, 96, 10), nn.Tanh)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    feedback = torch.randn(10, 96) / 96**0.5
    t.watch(model)
    for _, rows in t.batches(300, len(split.x), 64):
        x = split.x[rows]
        with torch.no_grad():
            hidden = model[0](x).tanh()
            wrong = model[2](hidden).softmax(1)
            wrong[torch.arange(len(x)), split.y[rows]] -= 1
            back = (wrong @ feedback) * (1 - hidden**2)
            model[2].weight.grad = wrong.T @ hidden / len(x)
            model[2].bias.grad = wrong.mean(0)
            model[0].weight.grad = back.T @ x / len(x)
            model[0].bias.grad = back.mean(0)
        optimizer.step()
    t.learned(noted_accuracy(t, model, split) > 0.88)


@fifth.healthy
def old_tasks_are_kept(t: Training) -> None:
    """Elastic weight consolidation: 0 to 4 first, then 5 to 9; Kirkpatrick 2017.

    The second task alone is watched; its five classes share the head of the first.
    Learned: the new classes, though the weights are held back.
    """
    split, criterion = digits(), nn.CrossEntropyLoss()
    old, new = (torch.nonzero(split.y < 5)[:, 0], torch.nonzero(split.y >= 5)[:, 0])
    model = mlp((64, 64, 5))
    optimizer = Adam(model.parameters(), 2e-3)
    for _ in range(150):
        rows = old[t.draw(len(old), 64)]
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    matters = [torch.zeros_like(weight) for weight in model.parameters()]
    for row in old[t.draw(len(old), 200)]:
        cost = criterion(model(split.x[row, None]), split.y[row, None])
        for total, slope in zip(
            matters, torch.autograd.grad(cost, list(model.parameters())), strict=True
        ):
            total.add_(slope**2 / 200)
    kept = [weight.detach().clone() for weight in model.parameters()]
    optimizer.zero_grad()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows = new[t.draw(len(new), 64)]
        cost = criterion(model(split.x[rows]), split.y[rows] - 5)
        pull = sum(
            (much * (weight - was) ** 2).sum()
            for much, weight, was in zip(matters, model.parameters(), kept, strict=True)
        )
        return cost + 50 * pull

    train(t, loss_of, Adam(model.parameters(), 1e-3), n_steps=200)
    with torch.no_grad():
        said = model(split.x_val).argmax(1)
    is_new = split.y_val >= 5
    right = float((said[is_new] == split.y_val[is_new] - 5).float().mean())
    kept_share = float((said[~is_new] == split.y_val[~is_new]).float().mean())
    t.note(new=right, kept=kept_share)
    t.learned(right > 0.8)
