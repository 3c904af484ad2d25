"""Probes change nothing in a training, and say when they cannot be made."""

from __future__ import annotations

import copy
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.probes import quiet_copy
from tdbg.hooks.pytorch.checks.probes.outside_effects import ModelSurvey
from tdbg.run.observations import Fault, Observation
from torch_helpers import digits

pytestmark = pytest.mark.torch

DATA = next(digits(512))
Model = Callable[[], nn.Module]


class Busy(nn.Module):
    """Draws from all generators, counts its calls, and normalizes by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(16, 10)
        self.register_buffer("n_calls", torch.zeros(()))
        self.own = torch.Generator().manual_seed(3)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        self.seen.append(len(x))
        x = x + 0.01 * torch.randn(x.shape, generator=self.own)
        x = x + 0.01 * torch.rand_like(x) + 0.01 * random.random()
        x = x + 0.01 * float(np.random.rand())  # noqa: NPY002
        logits: Tensor = self.last(self.drop(self.norm(self.first(x)).relu()))
        return logits


def train(
    run: Path,
    model: nn.Module,
    *,
    probes: bool | None = True,
    n_steps: int = 60,
    called: Callable[..., Any] | None = None,
    n_workers: int = 0,
) -> list[Observation]:
    """Train a classifier of digits; return what the hook saw of probes."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = DATA
    loader = DataLoader(
        TensorDataset(x, y), 16, shuffle=True, num_workers=n_workers, drop_last=True
    )
    with td.watch(model, out=run, probes=probes, min_free_bytes=0):
        left = n_steps
        while left > 0:
            for images, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy((called or model)(images), labels).backward()
                optimizer.step()
                left -= 1
                if left <= 0:
                    break
    return list(tdbg.create_trial(run).observations())


@pytest.fixture
def signals() -> Iterator[None]:
    """Put back the handler of signals that workers of a loader leave."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def reasons(observations: list[Observation]) -> set[str]:
    (probed,) = (each for each in observations if each.fault is Fault.PROBED)
    return set(probed.words.values())


def seeded() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_training_is_the_same_to_the_last_bit(tmp_path: Path, n_workers: int) -> None:
    ends = []
    for probes in (True, False):
        seeded()
        model = Busy()
        train(tmp_path / str(probes), model, probes=probes, n_workers=n_workers)
        drawn = (float(torch.rand(())), random.random(), np.random.rand())  # noqa: NPY002
        generator = float(torch.rand((), generator=model.own))
        ends.append((model.state_dict(), drawn, generator, model.seen))
    (one, *others), (other, *more) = ends
    assert others == more
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_compiled_training_is_the_same_and_compiles_no_more(tmp_path: Path) -> None:
    import torch._dynamo

    ends = []
    for probes in (True, False):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        seeded()
        model = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 10))
        compiled = torch.compile(model, backend="aot_eager")
        train(tmp_path / str(probes), model, probes=probes, called=compiled)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        ends.append((model.state_dict(), graphs))
    (one, n), (other, m) = ends
    assert n == m > 0
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_generator_of_the_program_draws_what_it_would_have_drawn(
    tmp_path: Path,
) -> None:
    def numbers(run: Path, *, probes: bool) -> list[float]:
        seeded()
        generator = torch.Generator().manual_seed(7)

        class Noisy(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x + torch.randn(x.shape, generator=generator))

        train(run, Noisy(64, 10), probes=probes)
        return torch.rand(4, generator=generator).tolist()

    assert numbers(tmp_path / "a", probes=True) == numbers(tmp_path / "b", probes=False)


def test_a_probe_takes_few_calls(tmp_path: Path, monkeypatch: Any) -> None:
    calls: list[int] = []
    plain = quiet_copy.QuietCopy.__call__

    def counted(self: quiet_copy.QuietCopy, args: Any, kwargs: Any) -> Any:
        calls.append(len(args[0]))
        return plain(self, args, kwargs)

    monkeypatch.setattr(quiet_copy.QuietCopy, "__call__", counted)
    train(tmp_path / "sound", nn.Linear(64, 10))
    assert calls == [16, 16, 16, 16]
    calls.clear()
    train(tmp_path / "random", Busy())
    assert len(calls) == 3


@pytest.mark.parametrize("value", ["", "1", "on", "true"])
def test_probes_are_on(run_dir: Path, monkeypatch: Any, value: str) -> None:
    monkeypatch.setenv("TDBG_PROBES", value)
    assert reasons(train(run_dir, Wide(), probes=None, n_steps=4))


@pytest.mark.parametrize(("probes", "value"), [(False, ""), (False, "1"), (None, "0")])
def test_nobody_probes_who_is_told_not_to(
    run_dir: Path, monkeypatch: Any, probes: bool | None, value: str
) -> None:
    monkeypatch.setenv("TDBG_PROBES", value)
    assert train(run_dir, Wide(), probes=probes, n_steps=4) == []


# ---- models that are left alone ----------------------------------------------


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("table", torch.zeros(17 << 20))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x)
        return logits


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.lock = nn.Linear(64, 10), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(x)
        return logits


class Escaping(nn.Module):
    """Calls its layer by a function that belongs to the original."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))
        last = self.last
        self.call = lambda x: last(x + 0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.call(x)
        return logits


class OnlyTrains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            msg = "not trained yet"
            raise RuntimeError(msg)
        logits: Tensor = self.last(x)
        return logits


def hooked() -> nn.Module:
    model = nn.Linear(64, 10)
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Wide, "larger than 64 MiB"),
        (Locked, "refers to a lock"),
        (Escaping, "refers to the model itself"),
        (OnlyTrains, "a call in eval() raises RuntimeError: not trained yet"),
        (hooked, "has a hook of your program"),
    ],
)
def test_a_model_that_cannot_be_copied_is_left_alone(
    run_dir: Path, make: Model, reason: str
) -> None:
    torch.manual_seed(0)
    model = make()
    (why,) = reasons(train(run_dir, model, n_steps=4))
    assert reason in why


def test_a_copy_that_calls_the_original_changes_nothing_there(tmp_path: Path) -> None:
    ends = []
    for probes in (True, False):
        seeded()
        model = Escaping()
        train(tmp_path / str(probes), model, probes=probes, n_steps=6)
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_no_hook_of_all_modules_hears_of_a_probe(run_dir: Path) -> None:
    heard: list[bool] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: heard.append(module.training)
    )
    try:
        train(run_dir, nn.Sequential(nn.Linear(64, 10)), n_steps=4)
    finally:
        handle.remove()
    assert heard == [True] * 8


def test_a_probe_records_nothing(tmp_path: Path) -> None:
    class WithLoss(nn.Linear):
        """Computes a loss in its forward, which is captured."""

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = super().forward(x).relu()
            F.mse_loss(logits, torch.zeros_like(logits))
            return logits

    names = []
    for probes in (True, False):
        torch.manual_seed(0)
        train(tmp_path / str(probes), WithLoss(64, 10), probes=probes, n_steps=8)
        trial = tdbg.create_trial(tmp_path / str(probes))
        names.append((trial.tensor_names(), trial.modes(), trial.steps()))
    assert names[0] == names[1]


def test_the_model_is_copied_with_its_plain_tensors() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    copied = quiet_copy.QuietCopy(model, ModelSurvey(model))
    x = torch.ones(3, 4)
    with copied.silence():
        answered = copied((x,), {})
    assert torch.equal(answered, copy.deepcopy(model).eval()(x).detach())


def test_sparse_inputs_are_left_alone(run_dir: Path) -> None:
    class OfGraphs(nn.Linear):
        def forward(self, x: Tensor, edges: Any = None) -> Tensor:
            return edges @ super().forward(x)

    model, edges = OfGraphs(64, 10), torch.eye(16).to_sparse()
    observed = train(run_dir, model, n_steps=4, called=lambda x: model(x, edges))
    assert reasons(observed) == {"its inputs hold a sparse or a nested tensor"}


def test_inputs_that_are_no_tensors_are_left_alone(run_dir: Path) -> None:
    class OfLists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, images: Any) -> Tensor:
            logits: Tensor = self.last(images.x)
            return logits

    class Images:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    model = OfLists()
    observed = train(run_dir, model, n_steps=4, called=lambda x: model(Images(x)))
    assert reasons(observed) == {"its inputs hold a Images"}
