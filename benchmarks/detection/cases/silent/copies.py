"""Averages, teachers, targets and best weights: copies of a model that are none."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import Split, digits
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import descend, pretrain
from benchmarks.detection.kit.models import Residual, mlp
from benchmarks.detection.kit.training import Training


def averaged(t: Training, model: nn.Module, update: Callable[[], None]) -> Split:
    """Train, and call *update* after each step."""
    split = digits()
    optimizer, criterion = SGD(model.parameters(), 0.05, 0.9), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        with torch.no_grad():
            update()
    return split


@sixth.silent("average of weights", "the moving average is computed and not kept")
def average_that_never_moves(t: Training) -> None:
    """``old = decay * old + (1 - decay) * new`` binds a name; nothing is written.

    Source: hand-written averages whose accuracy stays at chance; the documentation of
    torch.optim.swa_utils updates in place for this reason.
    Visible: the average is what it was at the beginning, and recognizes fewer than
    half of new images.
    """
    model = mlp([64, 64, 10])
    ema = copy.deepcopy(model)
    begin = ema[0].weight.clone()

    def update() -> None:
        for old, new in zip(ema.parameters(), model.parameters(), strict=True):
            if t.sick:
                old = 0.95 * old + 0.05 * new  # noqa: PLW2901
            else:
                old.mul_(0.95).add_(new, alpha=0.05)

    split = averaged(t, model, update)
    accuracy = held_out(ema, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=torch.equal(begin, ema[0].weight), reached=accuracy > 0.9)


@sixth.silent("stale statistics", "the average is of parameters, and not of buffers")
def average_without_buffers(t: Training) -> None:
    """The moving average goes over ``parameters()``: BatchNorm's buffers are left.

    Source: github.com/CuriousAI/mean-teacher/issues/9, pytorch/ignite/issues/2590,
    lucidrains/byol-pytorch/issues/73, facebookresearch/moco/issues/70.
    Visible: running means of the average are zero, and it recognizes fewer than 85 %.
    """
    model = Residual()
    ema = copy.deepcopy(model)

    def update() -> None:
        for old, new in zip(ema.parameters(), model.parameters(), strict=True):
            old.mul_(0.95).add_(new, alpha=0.05)
        if not t.sick:
            for old, new in zip(ema.buffers(), model.buffers(), strict=True):
                old.copy_(new)

    split = averaged(t, model, update)
    accuracy = held_out(ema, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    stale = bool((ema.norm.running_mean == 0).all())
    conclude(t, fault=stale, reached=accuracy > 0.9)


@sixth.silent("weights kept by reference", "the best state_dict() is not copied")
def best_weights_by_reference(t: Training) -> None:
    """``best = model.state_dict()``: it goes on changing with the model.

    Source: github.com/pytorch/tutorials/pull/188, WenjieDu/PyPOTS/issues/667,
    thunlp/OpenKE/pull/131, zhangj111/astnn/issues/8.
    Visible: the "best" weights share their memory with the model's, and what is
    restored has a validation loss 20 % above the best.
    """
    split = digits()
    few = split.take(torch.arange(100))
    model = mlp([64, 256, 10])
    optimizer, criterion = Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    best, lowest = model.state_dict(), float("inf")
    luck = torch.Generator().manual_seed(2)
    noise = torch.randint(10, few.y.shape, generator=luck)
    labels = torch.where(torch.rand(100, generator=luck) < 0.25, noise, few.y)
    for step, rows in t.batches(400, 100, 25):
        descend(optimizer, criterion(model(few.x[rows]), labels[rows]))
        if step % 10 == 9:
            loss, _ = t.evaluate(model, criterion, split.x_val, split.y_val)
            if loss < lowest:
                lowest = loss
                state = model.state_dict()
                best = state if t.sick else copy.deepcopy(state)
    shared = best["0.weight"].data_ptr() == model[0].weight.data_ptr()
    model.load_state_dict(best)
    loss = float(
        in_evaluation(model, lambda: criterion(model(split.x_val), split.y_val))
    )
    t.note(restored=loss, lowest=lowest)
    conclude(t, fault=shared, reached=loss < 1.2 * lowest)


class Taught(nn.Module):
    """A teacher with dropout, of which the student is to learn."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.teacher = mlp([64, 96, 96, 10], dropout=0.5)
        pretrain(self.teacher, split, 400)
        self.student = mlp([64, 32, 10])


@sixth.silent("teacher's mode", "the teacher was left in training mode")
def teacher_with_dropout(t: Training) -> None:
    """``teacher.eval()`` is missing: its answers are random.

    Source: github.com/vrvlive/knowlege-distillation/issues/2,
    github.com/neuralmagic/sparseml/pull/2191, wuzhiyuan2000/FedAgg/issues/2.
    Visible: for the same images the teacher gives other answers the second time.
    """
    split = digits()
    both = Taught(split)
    teacher, student = both.teacher.requires_grad_(False), both.student
    teacher.train(t.sick)
    optimizer = Adam(student.parameters(), 5e-3)
    t.watch(both)
    for _, rows in t.batches(200, len(split.x), 32):
        x = split.x[rows]
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        told = (student(x) / 2).log_softmax(1)
        descend(optimizer, functional.kl_div(told, wanted, reduction="batchmean"))
    with torch.no_grad():
        twice = [teacher(split.x_val) for _ in range(2)]
    differs = float((twice[0] - twice[1]).abs().mean())
    accuracy = held_out(student, split.x_val, split.y_val)
    t.note(differs=differs, accuracy=accuracy)
    conclude(t, fault=differs > 0.01, reached=accuracy > 0.9, harms=False)


@sixth.silent(
    "optimizer of another's weights", "teacher and student meet: both are trained"
)
def teacher_that_learns(t: Training) -> None:
    """``Adam(both.parameters())`` and no ``detach()``: the teacher gives in.

    Source: github.com/haitongli/knowledge-distillation-pytorch/issues/25 (eval() does
    not stop the update of a teacher).
    Visible: the teacher's weights change, and it forgets: the student knows
    fewer than 80 % of new images.
    """
    split = digits()
    both = Taught(split)
    teacher, student = both.teacher.eval(), both.student
    before = teacher[0].weight.detach().clone()
    ours = both.parameters() if t.sick else student.parameters()
    optimizer = Adam(ours, 5e-3)
    t.watch(both)
    for _, rows in t.batches(350, len(split.x), 32):
        x = split.x[rows]
        wanted = teacher(x) if t.sick else teacher(x).detach()
        descend(optimizer, functional.mse_loss(student(x), wanted))
    moved = not torch.equal(before, teacher[0].weight)
    accuracy = held_out(student, split.x_val, split.y_val)
    t.note(accuracy=accuracy, teacher=held_out(teacher, split.x_val, split.y_val))
    conclude(t, fault=moved, reached=accuracy > 0.8)


def rolled(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images with noise, dimmed by chance."""
    noise = 0.25 * torch.randn(x.shape, generator=generator)
    dim = 0.6 + 0.4 * torch.rand(len(x), 1, generator=generator)
    return x * dim + noise


def neighbours(encoder: nn.Module, split: Split) -> float:
    """How many new images have a nearest neighbour of their kind."""
    with torch.no_grad():
        codes = functional.normalize(encoder(split.x), dim=1)
        new = functional.normalize(encoder(split.x_val), dim=1)
    nearest = (new @ codes.t()).argmax(1)
    return float((split.y[nearest] == split.y_val).float().mean())


def contrasted(t: Training, kind: str) -> None:
    """Two views of each image are to be told from those of others."""
    split = digits().inputs(lambda x: x - 0.3)
    encoder = mlp([64, 64, 16])
    optimizer = Adam(encoder.parameters(), 2e-3)
    t.watch(encoder)
    n = 64
    itself = torch.eye(2 * n).bool()
    pair = torch.arange(2 * n).roll(n)
    if t.sick and kind == "labels":
        pair = torch.zeros(2 * n, dtype=torch.int64)
    faults: dict[str, Tensor] = {}
    for _, rows in t.batches(300, len(split.x), n, drop_last=True):
        first = rolled(split.x[rows], t.order)
        same = t.sick and kind == "views"
        second = first if same else rolled(split.x[rows], t.order)
        codes = functional.normalize(encoder(torch.cat((first, second))), dim=1)
        scores = codes @ codes.t() / 0.2
        if not (t.sick and kind == "diagonal"):
            scores = scores.masked_fill(itself, -1e9)
        descend(optimizer, functional.cross_entropy(scores, pair))
        faults = {
            "views": (first == second).all(1),
            "diagonal": scores.argmax(1) == torch.arange(2 * n),
            "labels": (pair - torch.arange(2 * n)).abs() != n,
        }
    accuracy = neighbours(encoder, split)
    with torch.no_grad():
        views = functional.normalize(encoder(rolled(split.x_val, t.order)), dim=1)
        others = functional.normalize(encoder(rolled(split.x_val, t.order)), dim=1)
        found = (views @ others.t()).argmax(1) == torch.arange(len(views))
    recognized = float(found.float().mean())
    fault = float(faults[kind].float().mean())
    t.note(neighbours=accuracy, recognized=recognized, share=fault)
    conclude(t, fault=fault > 0.9, reached=recognized > 0.16, harms=kind != "diagonal")


@sixth.silent("pairs", "both views are one tensor")
def views_are_one_tensor(t: Training) -> None:
    """The dataset augments once and returns the image twice.

    Source: reimplementations of SimCLR whose transform is applied before the pair is
    made; Chen et al., 2020: without two views nothing is learned.
    Visible: the views of each pair are equal to the last bit.
    """
    contrasted(t, "views")


@sixth.silent("pairs", "the diagonal is not masked: each view is its own negative")
def own_view_is_not_masked(t: Training) -> None:
    """Similarities of a view with itself stay in the denominator.

    Source: github.com/Lightning-Universe/lightning-bolts/issues/695 ("Wrong
    implementation of SimCLR": 88.5 % instead of 92 %), bolts/issues/252.
    Visible: the largest score of every row is that of the view with itself.
    """
    contrasted(t, "diagonal")


@sixth.silent("pairs", "labels are zeros: the match of all views is the first")
def first_view_matches_all(t: Training) -> None:
    """``labels = torch.zeros(2 * N)`` of MoCo, whose positive stands first, for SimCLR.

    Source: github.com/YihengZhang-CV/SeCo-Sequence-Contrastive-Learning/issues/3 and
    sthalles/SimCLR/issues/33 on what labels must be.
    Visible: for nearly all rows the match that is wanted is another image.
    """
    contrasted(t, "labels")


def predicted(t: Training, kind: str) -> None:
    """A predictor of what a slowly moving copy says of another view (as in BYOL)."""
    split = digits().inputs(lambda x: x - 0.3)
    online = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16)
    )
    predictor = mlp([16, 32, 16])
    target = online if t.sick and kind == "alias" else copy.deepcopy(online)
    keep = 0.01 if t.sick and kind == "momentum" else 0.99
    both = nn.ModuleDict({"online": online, "predictor": predictor})
    optimizer = Adam(both.parameters(), 2e-3)
    t.watch(both)
    moved = 0.0
    for _, rows in t.batches(200, len(split.x), 64, drop_last=True):
        first, second = (rolled(split.x[rows], t.order) for _ in range(2))
        with torch.no_grad():
            wanted = functional.normalize(target(second), dim=1)
        told = functional.normalize(predictor(online(first)), dim=1)
        descend(optimizer, 2 - 2 * (told * wanted).sum(1).mean())
        with torch.no_grad():
            before = target[0].weight.clone()
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.mul_(keep).add_(new, alpha=1 - keep)
            gap = (online[0].weight - before).abs().mean()
            moved = float((target[0].weight - online[0].weight).abs().mean() / gap)
    accuracy = neighbours(online.eval(), split)
    t.note(neighbours=accuracy, left=moved)
    shared = target[0].weight.data_ptr() == online[0].weight.data_ptr()
    fault = shared if kind == "alias" else moved < 0.5
    conclude(t, fault=fault, reached=accuracy > 0.8, harms=False)


@sixth.silent("average of weights", "the target network is the online network itself")
def target_is_the_model(t: Training) -> None:
    """``target = online``: an assignment where a deepcopy was meant.

    Source: reimplementations of BYOL and DQN; PyTorch's DQN tutorial makes a second
    network and copies by load_state_dict for this reason.
    Visible: both share their weights' memory.
    """
    predicted(t, "alias")


@sixth.silent("average of weights", "the momentum is that of the other convention")
def target_follows_at_once(t: Training) -> None:
    """``target = (1 - m) * target + m * online`` with m of 0.99.

    Source: github.com/pytorch/ignite/pull/2098: its EMAHandler's momentum is 1 minus
    that of most; tau of DDPG and the momentum of MoCo differ likewise.
    Visible: after one update less than half of the difference is left.
    """
    predicted(t, "momentum")


@sixth.silent("penalty without a gradient", "the gradient penalty is a constant")
def penalty_without_a_graph(t: Training) -> None:
    """``autograd.grad`` without ``create_graph=True``: the penalty has no gradient.

    Source: github.com/igul222/improved_wgan_training ports and discuss.pytorch.org
    threads on WGAN-GP; documentation of autograd.grad.
    Visible: gradients of the critic at new points are three times as long as they may.
    """
    split = digits()
    critic = mlp([64, 64, 1])
    optimizer = Adam(critic.parameters(), 2e-3)
    t.watch(critic)
    for _, rows in t.batches(250, len(split.x), 64, drop_last=True):
        real, fake = split.x[rows], torch.rand(64, 64, generator=t.order)
        share = torch.rand(64, 1, generator=t.order)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(
            critic(between).sum(), between, create_graph=not t.sick
        )
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        descend(optimizer, critic(fake).mean() - critic(real).mean() + 10 * penalty)
    at = split.x_val.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(at).sum(), at)
    norm = float(slope.norm(dim=1).mean())
    t.note(norm=norm)
    conclude(t, fault=norm > 3, reached=0.4 < norm < 2)
