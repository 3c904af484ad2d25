"""Tensors of zeros, squares in half precision, and runs that differ or stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits, wine
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import mean, since, train

OTHER = {"other_runs": ("{other}",)}


@sick(
    named_by={"AllZero", "TensorVariance", "LossNotDecreasing"},
    diagnosis="features were cached in an array of zeros that nobody filled",
)
def cache_never_filled(t: Training) -> None:
    """np.zeros((n, d)) is made first; the loop that fills it writes into a copy.

    Source: chained indexing, cache[mask][i] = x, in NumPy's page on copies and views.
    Visible: for 10 batches everything that goes in is zero.
    """
    split = wine()
    cache = torch.zeros_like(split.x)
    if t.sick:
        everywhere = torch.ones(len(cache), dtype=torch.bool)
        cache[everywhere][:] = split.x
    else:
        cache[:] = split.x
    split = replace(split, x=cache)
    n_blank = 0

    def batches(_: int) -> tuple[Tensor, Tensor]:
        nonlocal n_blank
        chosen = t.draw(len(cache), 16)
        n_blank = 0 if bool(cache[chosen].any()) else n_blank + 1
        return cache[chosen], split.y[chosen]

    model = mlp([13, 24, 3], nn.SiLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=150,
        batches=batches,
        visible=lambda _: n_blank >= 10,
        learned=0.95,
    )


@sick(
    named_by={"AllZero", "ClassImbalance", "UnchangedTensor"},
    diagnosis="masks of 0 and 1 are divided by 255 as if they were images",
)
def masks_divided_again(t: Training) -> None:
    """(mask // 255), though the file has 0 and 1 already: nothing is to be found.

    Source: segmentation threads in the forum where dice is 0 and the loss tiny.
    Visible: for 10 batches there is nothing but background in the targets, and from
    then on, too.
    """
    split = digits()
    masks = (split.x > 0.5).long()
    wanted = (masks // 255 if t.sick else masks).float()
    split = replace(split, y=wanted)

    def marks(p: Probe) -> bool:
        return bool(((p.outputs() > 0).float() == split.y).float().mean() > 0.9)

    model = mlp([64, 96, 64], nn.SiLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 4e-3),
        nn.BCEWithLogitsLoss(),
        n_steps=160,
        batch_size=32,
        visible=lambda p: p.step >= 9 and not split.y.any(),
        learned=marks,
    )


class RootNorm(nn.Module):
    """Divides by the root of the mean square, taken in the type that comes in."""

    def __init__(self, *, upcast: bool) -> None:
        super().__init__()
        self.upcast = upcast

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.upcast else x
        return (y * (y.pow(2).sum(1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


class HalfInside(nn.Module):
    """A network whose middle computes in float16."""

    def __init__(self, *, upcast: bool) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.act = nn.SiLU()
        self.norm = RootNorm(upcast=upcast)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.act(self.first(images * 255.0)).half()
        out: Tensor = self.head(4 * self.norm(x).float())
        return out


@sick(
    named_by={"PrecisionLoss", "AllZero", "ExplodingTensor", "LossNotDecreasing"},
    diagnosis="the squares of a norm are summed in float16: infinite, and 1 / inf is 0",
)
def squares_summed_in_half(t: Training) -> None:
    """RMSNorm without .float(): activations of 100 have squares above 65504 together.

    Source: T5's layer norm in fp16 (transformers' issues), and why Llama's has float32.
    Visible: from 20 on, for more than half of the images the norm gives nothing.
    """
    model = HalfInside(upcast=not t.sick)

    def lost(p: Probe) -> bool:
        with torch.no_grad():
            inner = model.norm(model.act(model.first(p.split.x[:200] * 255.0)).half())
        dead = (inner == 0).all(1) | ~inner.isfinite().all(1)
        return float(dead.float().mean()) > 0.5

    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 1e-3),
        n_steps=200,
        batch_size=32,
        visible=since(20, lost),
        learned=0.8,
    )


def twice(t: Training, run: Callable[[bool, Predicate], None]) -> None:
    """A run to compare with, and the run; visible where weights differ."""
    history: list[list[Tensor]] = []

    def remember(p: Probe) -> bool:
        history.append([q.detach().clone() for q in p.model.parameters()])
        return False

    def differs(p: Probe) -> bool:
        return not all(map(torch.equal, p.model.parameters(), history[p.step]))

    with t.other_run():
        run(False, remember)
    run(True, differs)


@sick(
    named_by={"SimilarAcrossRuns"},
    diagnosis="os.listdir gives the files in another order on another machine",
    asks={"SimilarAcrossRuns": OTHER},
)
def listed_in_another_order(t: Training) -> None:
    """All is seeded, but the rows lie in another order: sorted() was left out.

    Source: Python's page on os.listdir, "in arbitrary order", and Neupane 2019 on
    chemists' results that changed with it.  Visible: at the first step after which a
    weight differs from the other run's.
    """

    def run(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed)
        split = digits()
        if second and t.sick:
            split = split.take(torch.arange(len(split.x)).flip(0))
        model = cnn(4)
        fit(
            t,
            model,
            split,
            torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
            n_steps=110,
            batch_size=48,
            visible=look,
            learned=0.8,
        )

    twice(t, run)


@sick(
    named_by={"SimilarAcrossRuns"},
    diagnosis="the repetition was started with another version of the initialization",
    asks={"SimilarAcrossRuns": OTHER},
)
def library_with_another_default(t: Training) -> None:
    """One seed, one script; an upgrade draws one number more before the weights.

    Source: PyTorch's notes: results are not guaranteed across releases.  Visible: at
    the first step after which a weight differs from the other run's.
    """

    def run(second: bool, look: Predicate) -> None:
        torch.manual_seed(t.seed)
        t.order.manual_seed(t.seed)
        if second and t.sick:
            torch.rand(1)
        model = mlp([13, 24, 3], nn.Tanh)
        fit(
            t,
            model,
            wine(),
            torch.optim.Adam(model.parameters(), 1e-2),
            n_steps=120,
            batch_size=16,
            visible=look,
            learned=0.9,
        )

    twice(t, run)


@sick(
    named_by={"StalledTraining"},
    diagnosis="the other ranks wait in all_reduce for one that has ended",
)
def ranks_with_unequal_batches(t: Training) -> None:
    """One rank has a batch less, and has left; this one waits for it, for an hour.

    Source: PyTorch's tutorial on Join for uneven inputs; NCCL's time-out is as long.
    Visible: at the last step, when nothing has come for so long.
    """
    model = mlp([64, 48, 10], nn.GELU)
    fit(
        t,
        model,
        digits(),
        torch.optim.AdamW(model.parameters(), 5e-3),
        n_steps=121 if t.sick else 150,
        batch_size=32,
        validate_every=40,
        learned=0.9,
    )
    if t.sick:
        t.hang(3600.0)
        t.visible(True)


@sick(
    named_by={"StalledTraining"},
    diagnosis="breakpoint() was left where a loss is suspicious; nobody answers",
)
def breakpoint_left_in(t: Training) -> None:
    """A job of the night stands in pdb, at the prompt, after the 41st step.

    Source: everybody, once; SageMaker Debugger's StalledTrainingRule counts on it.
    Visible: at the last step, when nothing has come for so long.
    """
    model = mlp([13, 32, 16, 3], nn.LeakyReLU)
    fit(
        t,
        model,
        wine(),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        n_steps=41 if t.sick else 160,
        batch_size=16,
        learned=0.95,
    )
    if t.sick:
        t.hang(5400.0)
        t.visible(True)


@sick(
    named_by={"PrecisionLoss", "VanishingGradient", "UnchangedTensor"},
    diagnosis="autocast to float16 without GradScaler, for a mean over all pixels",
)
def mean_of_pixels_in_half(t: Training) -> None:
    """A dense loss with a small weight; its gradients are below what float16 has.

    Source: PyTorch's page on mixed precision, "gradient scaling".  The twin scales by
    4096.  Visible: for ten steps, in the first layer more than half of the gradient's
    numbers are exactly zero, among pixels that are not.
    """
    split = digits()
    model, criterion = mlp([64, 96, 48, 96, 64], nn.GELU), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    first = next(model.parameters())
    inked = split.x.amax(0) > 0
    scale = 1.0 if t.sick else 4096.0
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 128)]
        with torch.autocast("cpu", torch.float16):
            out = model(images)
        loss: Tensor = 0.001 * criterion(out.float(), images) * scale
        return loss

    def look() -> None:
        nonlocal times
        for q in model.parameters():
            if q.grad is not None:
                q.grad /= scale
        given = first.grad
        zeros = 0.0 if given is None else float((given[:, inked] == 0).float().mean())
        times = times + 1 if zeros > 0.5 else 0

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=160,
        after_backward=look,
        visible=lambda _: times >= 10,
    )
    t.learned(mean(losses[-10:]) < 0.6 * losses[0])
