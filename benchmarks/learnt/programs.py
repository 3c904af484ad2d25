"""Silent bugs of TrainCheck's paper, as small trainings with healthy twins.

Each program is ours, and does what the report describes, on a CPU.  ``Settings`` are
the seed and mild changes; a program that is not ``buggy`` is healthy with all of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tdbg.pytorch as td

STEPS, INPUTS, CLASSES = 80, 16, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a training is run.

    Attributes:
        seed: Of weights and data.
        batch: Samples of a batch.
        rate: Learning rate.
        width: Units of a layer.
    """

    seed: int = 0
    batch: int = 32
    rate: float = 1e-2
    width: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A bug.

    Attributes:
        name: The report, as the paper names it.
        source: Where it was reported.
        mistake: What is wrong.
        train: Called with the run's directory, the settings, and whether it is buggy.
    """

    name: str
    source: str
    mistake: str
    train: Callable[[str, Settings, bool], None]


PROGRAMS: dict[str, Program] = {}


def _program(name: str, source: str, mistake: str) -> Callable[[Any], Any]:
    def add(train: Callable[[str, Settings, bool], None]) -> Any:
        PROGRAMS[name] = Program(name=name, source=source, mistake=mistake, train=train)
        return train

    return add


class Classifier(nn.Module):
    """Two hidden layers, a normalization and dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, width)
        self.bn = nn.BatchNorm1d(width)
        self.fc2 = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.bn(self.fc1(x)))
        return self.head(self.drop(torch.relu(self.fc2(hidden))))


def _batches(settings: Settings, steps: int = STEPS) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1000 + settings.seed)
    rule = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(7))
    for _ in range(steps):
        x = torch.randn(settings.batch, INPUTS, generator=generator)
        yield x, (x @ rule).argmax(1)


def _evaluate(model: nn.Module, criterion: nn.Module, settings: Settings) -> None:
    model.eval()
    with torch.no_grad():
        for x, y in _batches(settings, 2):
            criterion(model(x), y)
    model.train()


def _fit(
    out: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    *,
    clears: bool = True,
    begin: Callable[[int], object] = int,
    batches: Any = None,
) -> None:
    """Train and evaluate; *begin* is called as each step begins."""
    criterion = nn.CrossEntropyLoss()
    hook = td.watch(model, criterion, out=out)
    for step, (x, y) in enumerate(batches or _batches(settings)):
        begin(step)
        if clears:
            optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if step % 10 == 9:
            _evaluate(model, criterion, settings)
    hook.close()


@_program(
    "SO-60335387",
    "https://stackoverflow.com/questions/60335387",
    "zero_grad() is missing",
)
def _zero_grad(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    _fit(out, model, optimizer, settings, clears=not buggy)


@_program(
    "PTF-84911",
    "https://discuss.pytorch.org/t/84911",
    "everything but normalizations is frozen; the optimizer has the head alone",
)
def _frozen(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    for name, parameter in model.named_parameters():
        # Fine-tuning: the first layer is frozen in the healthy twin.
        frozen = "bn" not in name if buggy else name.startswith("fc1")
        parameter.requires_grad_(not frozen)
    trained = model.head if buggy else model
    optimizer = torch.optim.Adam(trained.parameters(), settings.rate)
    _fit(out, model, optimizer, settings)


class _Compiled(torch.optim.Adam):
    """A compiled step: once without gradients, it is the empty one for ever."""

    is_empty = False

    def step(self, closure: Any = None) -> Any:
        return None if self.is_empty else super().step(closure)


@_program(
    "PT-115607",
    "https://github.com/pytorch/pytorch/issues/115607",
    "a compiled optimizer goes on doing nothing after one step without gradients",
)
def _stale_step(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    optimizer = _Compiled(model.parameters(), settings.rate)

    def begin(step: int) -> None:
        # One frozen iteration; the guard that would end it is missing.
        optimizer.is_empty = step == 30 or (buggy and step > 30)

    _fit(out, model, optimizer, settings, begin=begin)


@_program(
    "AC-2665",
    "https://github.com/huggingface/accelerate/issues/2665",
    "the optimizer was made before the model was wrapped, which made new parameters",
)
def _early_optimizer(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    if not buggy:
        optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    _fit(out, model, optimizer, settings)


class _Stages(Classifier):
    """Freezes its first stage where train() is called, as mmpretrain's models do."""

    def train(self, mode: bool = True) -> _Stages:
        super().train(mode)
        for parameter in self.fc1.parameters():
            parameter.requires_grad_(False)
        return self


@_program(
    "MM-702",
    "https://github.com/open-mmlab/mmpretrain/issues/702",
    "frozen_stages takes effect in train(), which is never called",
)
def _frozen_stages(out: str, settings: Settings, buggy: bool) -> None:
    model = _Stages(settings.width)
    if not buggy:
        model.train()
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    criterion = nn.CrossEntropyLoss()
    hook = td.watch(model, criterion, out=out)
    for x, y in _batches(settings):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    hook.close()


class _Attention(nn.Module):
    """Attention over one sequence, whose dropout is a function."""

    def __init__(self, width: int, *, always_drops: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.always_drops = always_drops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        drops = self.training or self.always_drops
        return functional.dropout(weights, 0.1, training=drops) @ v


class _Encoder(nn.Module):
    def __init__(self, width: int, *, always_drops: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.attention = _Attention(width, always_drops=always_drops)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x.reshape(len(x), -1, 4))
        hidden = hidden + self.drop(self.attention(hidden))
        return self.head(hidden.mean(1))


@_program(
    "TF-33844",
    "https://github.com/huggingface/transformers/pull/33844",
    "attention drops in evaluation, too",
)
def _drops(out: str, settings: Settings, buggy: bool) -> None:
    model = _Encoder(settings.width, always_drops=buggy)
    _fit(out, model, torch.optim.Adam(model.parameters(), settings.rate), settings)


@_program(
    "LT-725",
    "https://github.com/Lightning-AI/lightning-thunder/issues/725",
    "autocast is not applied to linear layers",
)
def _autocast(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    plain = model.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not buggy):
            return plain(x)

    model.forward = forward  # type: ignore[method-assign]
    _fit(out, model, torch.optim.Adam(model.parameters(), settings.rate), settings)


@_program(
    "SO-67180955",
    "https://stackoverflow.com/questions/67180955",
    "workers of the data loader draw the same random numbers",
)
def _workers(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)

    def batches() -> Iterator[Any]:
        # Four workers, asked in turn; each generates its batches.
        seeds = [0] * 4 if buggy else range(4)
        base = 10 * settings.seed
        workers = [
            _batches(Settings(seed=base + each, batch=settings.batch)) for each in seeds
        ]
        for step in range(STEPS):
            yield next(workers[step % 4])

    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    _fit(out, model, optimizer, settings, batches=batches())


class _Spectral(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.utils.spectral_norm(nn.Linear(INPUTS, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.fc1(x)))


@_program(
    "PT-51800",
    "https://github.com/pytorch/pytorch/issues/51800",
    "evaluated before the first forward in training, weights are not normalized",
)
def _spectral(out: str, settings: Settings, buggy: bool) -> None:
    model = _Spectral(settings.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    hook = td.watch(model, criterion, out=out)
    if buggy:
        for _ in range(3):
            _evaluate(model, criterion, settings)
    for step, (x, y) in enumerate(_batches(settings)):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if step % 10 in (0, 9):
            _evaluate(model, criterion, settings)
    hook.close()


def _on_two_ranks(
    train: Callable[[str, Settings, bool], None],
) -> Callable[[str, Settings, bool], None]:
    """Return what trains on two ranks, in processes of a gloo group."""

    def started(out: str, settings: Settings, buggy: bool) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start_processes(
            _rank, (port, train.__name__, out, settings, buggy), 2, start_method="spawn"
        )

    return started


def _rank(
    rank: int, port: int, name: str, out: str, settings: Settings, buggy: bool
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(settings.seed)
    globals()[name](out, settings, buggy)
    distributed.barrier()
    distributed.destroy_process_group()


def _of_rank(settings: Settings) -> Settings:
    """Return settings with other data on each rank."""
    return Settings(
        seed=2 * settings.seed + distributed.get_rank(),
        batch=settings.batch,
        rate=settings.rate,
        width=settings.width,
    )


def _replicas_move(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    wrapped = DistributedDataParallel(model)
    if buggy:
        # To another device and back: hooks stay with the old parameters.
        for module in model.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(parameter.detach().clone()))
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    _fit(out, wrapped, optimizer, _of_rank(settings))


def _replicas_unwrapped(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    _fit(out, model if buggy else wrapped, optimizer, _of_rank(settings))


def _replicas_clip(out: str, settings: Settings, buggy: bool) -> None:
    model = Classifier(settings.width)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)

    def clip(*_: Any) -> None:
        # The norms of the second rank's copies are left out.
        clips = distributed.get_rank() == 0 or not buggy
        nn.utils.clip_grad_norm_(model.parameters(), 0.5 if clips else 1e9)

    optimizer.register_step_pre_hook(clip)
    _fit(out, wrapped, optimizer, _of_rank(settings))


_program(
    "PT-104336",
    "https://github.com/pytorch/pytorch/issues/104336",
    "the model moved after it was wrapped: gradients are no longer reduced",
)(_on_two_ranks(_replicas_move))
_program(
    "X-JXMNOP",
    "https://x.com/jxmnop/status/1778520637193240892",
    "the model is called without its wrapper",
)(_on_two_ranks(_replicas_unwrapped))
_program(
    "DS-1801",
    "https://github.com/microsoft/DeepSpeed/pull/1801",
    "gradients are clipped on the first rank alone (BLOOM-176B)",
)(_on_two_ranks(_replicas_clip))
#: Programs on two ranks, which take longer.
RANKED = frozenset({"PT-104336", "X-JXMNOP", "DS-1801"})
