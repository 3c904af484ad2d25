"""What the core takes by itself, against the same training taken through Python.

Both ways must record the same: rows, values, histograms and counts of units, in the
same order.  The training below has every case that the core leaves to Python.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tdbg import _core
from tdbg.capture import schedule
from tdbg.capture.recorder import Recorder
from tdbg.modes import ModeKeys
from tdbg.pytorch import Hook
from torch_helpers import Recorded, digits, make_hook


class _Doubled(nn.Module):
    """With a keyword, and with two outputs."""

    def forward(
        self, x: torch.Tensor, *, factor: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x * factor, x.mean()


class _Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 300)
        self.relu = nn.ReLU()
        self.inplace = nn.ReLU(inplace=True)
        self.doubled = _Doubled()
        self.shared = nn.Linear(300, 300)
        self.unused = nn.Linear(4, 4)
        self.flat = nn.Flatten()
        self.last = nn.Linear(300, 10)
        self.last.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.inplace(self.first(x)))
        x, _ = self.doubled(x, factor=2.0)
        x = checkpoint(self.shared, self.shared(x), use_reentrant=False)
        result: torch.Tensor = self.last(self.flat(x))
        return result


def _train(run_dir: Path, **options: Any) -> Hook:
    torch.manual_seed(5)
    model, criterion = _Strange(), nn.CrossEntropyLoss()
    hook = make_hook(run_dir, **options)
    hook.register_module(model)
    hook.register_loss(criterion)
    body = [each for name, each in model.named_parameters() if "last" not in name]
    optimizers = [
        torch.optim.SGD(model.last.parameters(), lr=0.1),
        torch.optim.SGD(body, lr=0.1),
    ]
    hook.register_optimizer(optimizers[1], defines_step=True)
    batches = digits(64)
    for step in range(6):
        for _ in range(1 + step % 2):  # Accumulated at every second step.
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        model.shared(torch.ones(2, 300))  # By itself, a further call.
        if step == 3:
            model.eval()
            with torch.no_grad():
                model(next(batches)[0])
            model.train()
            model.last.weight = nn.Parameter(model.last.weight.detach() * 0.5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    hook.set_mode(ModeKeys.EVAL)
    with torch.inference_mode():
        model(next(batches)[0].double().float())
    assert hook.counters()["internal_errors"] == 0
    return hook


def _everything(run_dir: Path) -> dict[str, Any]:
    recorded = Recorded(run_dir)
    names = sorted(recorded.names)
    fields = ("step", "call", "micro_batch", "flags", "count", "mean", "m2", "min")
    return {
        "steps": recorded.steps,
        "names": names,
        "order": [recorded._name(row) for row in recorded._rows],
        "rows": {
            name: [
                tuple(row[field].tobytes() for field in fields)
                for row in itertools.chain(*recorded.rows(name).values())
            ]
            for name in names
        },
        "values": [
            (recorded._name(row), int(row["step"]), int(row["call"]), raw.tobytes())
            for row, raw in recorded._tensors
        ],
        "histograms": len(recorded.histograms),
        "written": [int(n) for n in recorded.step_table["written"]],
    }


@pytest.mark.parametrize("with_more", [False, True])
def test_both_ways_record_the_same(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, with_more: bool
) -> None:
    """Sabotaged: a core that takes second calls too; first ones told to nobody."""
    options: dict[str, Any] = {}
    if with_more:
        options["save_histogram"] = True
        options["rules"] = ["DeadRelu"]
    quick = _train(run_dir / "quick", **options)
    spent = quick._session.recorder.batch_capture.spent_ns
    assert spent > 0
    quick.close()
    monkeypatch.setattr(Recorder, "calls_of", lambda *_: None)
    monkeypatch.setattr(Recorder, "parameters", lambda *_: None)
    slow = _train(run_dir / "slow", **options)
    assert slow._session.recorder.batch_capture.spent_ns == 0
    slow.close()
    assert _everything(run_dir / "quick") == _everything(run_dir / "slow")


def test_most_calls_never_reach_python(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first step, of a plain model, but the loss's."""
    model, criterion = (
        nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)),
        (nn.CrossEntropyLoss()),
    )
    takes: list[int] = []
    take = Recorder.take

    def count(self: Recorder, context: Any, *args: Any, **kwargs: Any) -> None:
        takes.append(context.step.number)
        take(self, context, *args, **kwargs)

    monkeypatch.setattr(Recorder, "take", count)
    hook = make_hook(run_dir)
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in itertools.islice(digits(8), 4):
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    # The loss's inputs and output.
    assert [takes.count(step) for step in range(1, 4)] == [2, 2, 2]
    hook.close()
    recorded = Recorded(run_dir)
    names = [name for name in recorded.names if not name.startswith("scalar/")]
    assert all(set(recorded.rows(name)) == {0, 1, 2, 3} for name in names)


def test_the_flags_are_those_of_the_core() -> None:
    """Python decides what is wanted; the core reads the same bits."""
    core = _core.schema()["CaptureFlag"]
    assert {name: getattr(schedule, name) for name in core} == core


def test_a_gradient_that_raises_is_a_fault_of_ours(run_dir: Path) -> None:
    """What the core meets in Python's code is counted; the training goes on."""
    model = nn.Linear(64, 10)
    hook = make_hook(run_dir)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Broken(nn.Parameter):
        @property
        def grad(self) -> torch.Tensor:  # type: ignore[override]
            msg = "no gradient for you"
            raise OSError(msg)

    inputs, labels = next(digits(8))
    nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    model._parameters["bias"] = Broken(torch.zeros(10))
    before = model.weight.detach().clone()
    optimizer.step()
    assert not np.array_equal(before.numpy(), model.weight.detach().numpy())
    # One of what captures it, and one of what looks which parameters have one.
    assert hook.counters()["internal_errors"] == 2
    hook.close()
