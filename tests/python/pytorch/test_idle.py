"""A step of which nothing is wanted: in few calls of Python, and all is noticed."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.compile.removable_hooks import RemovableHooks
from tdbg.pytorch import Hook, SaveConfig
from torch_helpers import Recorded, digits, make_hook

NEVER = td.SaveConfig(save_interval=10**6, statistics_interval=10**6)


# A checkout, and with it all that is installed in it, may be in a folder of that name.
PACKAGE = str(Path(tdbg.__file__).parent) + os.sep


def calls_of_tdbg(step: Any) -> list[str]:
    """The Python functions of tdbg that a call of *step* calls."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize(("has_loss", "most"), [(False, 37), (True, 63)])
def test_a_step_that_wants_nothing_calls_little(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, has_loss: bool, most: int
) -> None:
    """Processor time is noisy; the calls of Python that it follows are not."""
    model, criterion = nn.Linear(4, 2), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = td.Hook(run_dir, include_collections=["weights"], save_config=NEVER)
    hook.register_module(model)
    if has_loss:
        hook.register_loss(criterion)

    def step() -> None:
        criterion(model(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
        optimizer.step()

    for _ in range(60):  # Behind the beginning.
        step()
    # A look at requests is in one step of many, however long a step takes here.
    clock = itertools.count(time.perf_counter_ns(), 1000)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    # And so is the record of a second.
    fewest = min((calls_of_tdbg(step) for _ in range(5)), key=len)
    assert len(fewest) <= most, (len(fewest), "\n".join(fewest))
    assert hook.close()
    steps = 65
    found = tdbg.create_trial(run_dir).tensor_names(collection="losses")
    assert len(found) == has_loss
    assert hook.counters()["internal_errors"] == 0
    assert hook.overhead().steps == steps


class _Copied(nn.Module):
    """Calls functions, as most scripts do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.relu(self.fc1(x))
        return nn.functional.log_softmax(self.fc2(hidden), dim=1)


def test_a_step_by_default_calls_little(run_dir: Path) -> None:
    """With the default rules and their budget, between the steps that they need."""
    model = _Copied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.ones(3, 4), torch.arange(3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.nll_loss(model(inputs), labels).backward()
        optimizer.step()

    with td.watch(model, out=run_dir) as hook:
        for _ in range(60):  # Behind the beginning.
            step()
        fewest = min((calls_of_tdbg(step) for _ in range(20)), key=len)
        assert len(fewest) <= 58, (len(fewest), fewest)
        # Functions that are not followed now are not even diverted.
        assert not any("activation" in name for name in fewest)
        assert fewest.count("_calling.<locals>.call") == 1
        assert hook.counters()["internal_errors"] == 0
    assert set(Recorded(run_dir).rows("nll_loss_output_0")) == set(range(80))


def test_a_step_that_a_budget_leaves_out_calls_next_to_nothing(run_dir: Path) -> None:
    model = _Copied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.ones(3, 4), torch.arange(3)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.nll_loss(model(inputs), labels).backward()
        optimizer.step()

    with td.watch(model, out=run_dir, budget="off") as hook:
        for _ in range(60):
            step()
        policy = hook._session.policy
        policy.set_throttle(policy.throttle._replace(steps=8, activations=9, others=9))
        called = [calls_of_tdbg(step) for _ in range(30)]
        # The call of the backward pass; that of the loss is a frame of PyTorch.
        fewest = min(called, key=len)
        assert len(fewest) <= 1, fewest
        assert sum(len(each) == len(fewest) for each in called) >= 20
        assert hook.counters()["internal_errors"] == 0


# ---- hooks inside modules --------------------------------------------------------


def _model() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 16), nn.ReLU(inplace=True)), nn.Linear(16, 10)
    )


def _hooks_inside(model: nn.Module) -> list[int]:
    """Of each module but the root, how many."""
    return [
        len(each._forward_hooks) + len(each._forward_pre_hooks)
        for each in model.modules()
        if each is not model
    ]


def test_before_the_first_step_of_any_collection_steps_are_only_counted(
    run_dir: Path,
) -> None:
    """Sabotaged: the numbers of an optimizer are news as long as none is recorded."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        nn.functional.mse_loss(model(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
        optimizer.step()

    late = td.SaveConfig(save_interval=100, statistics_interval=5, start_step=90)
    hook = td.Hook(run_dir, include_collections=["scalars"], save_config=late)
    with hook:
        hook.get_collection("losses").save_config = late
        hook.register_module(model)
        for _ in range(60):  # Behind the beginning.
            step()
        assert min(len(calls_of_tdbg(step)) for _ in range(10)) <= 5
        for n in range(70, 110):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + max(0, n - 89))
            step()
    scalars = tdbg.create_trial(run_dir).scalars()
    (rate,) = (each for name, each in scalars.items() if name.endswith("lr"))
    # From the first step on at which anything is due each change is recorded.
    assert list(rate.steps) == list(range(90, 110))


def test_a_hook_comes_back_to_its_place() -> None:
    """Sabotaged: without the move the order is theirs, ours."""
    module = nn.Linear(1, 1)
    called: list[str] = []
    parking = RemovableHooks()
    ours = module.register_forward_hook(lambda *_: called.append("ours"))
    parking.add(module, "_forward_hooks", ours.id)
    parking.set_idle(True)
    assert not module._forward_hooks
    module.register_forward_hook(lambda *_: called.append("theirs"))
    parking.set_idle(False)
    module(torch.ones(1))
    assert called == ["ours", "theirs"]
    parking.set_idle(True)  # Beside another one it stays.
    module(torch.ones(1))
    assert called == ["ours", "theirs"] * 2
    ours.remove()
    parking.close()
    parking.set_idle(False)
    assert len(module._forward_hooks) == 1


def test_a_module_is_not_kept_alive() -> None:
    module = nn.Linear(1, 1)
    parking = RemovableHooks()
    parking.add(module, "_forward_hooks", module.register_forward_hook(print).id)
    del module
    parking.set_idle(True)
    parking.set_idle(False)


def test_at_quiet_steps_modules_have_no_hooks(run_dir: Path) -> None:
    model, criterion = _model(), nn.CrossEntropyLoss()
    every_third = SaveConfig(statistics_interval=3)
    hook = make_hook(run_dir, save_all=True, save_config=every_third)
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for inputs, labels in itertools.islice(digits(8), 7):
        counts.append(sum(_hooks_inside(model)) + len(criterion._forward_pre_hooks))
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    # ReLU has two, since it works in place. The clock keeps the loss's.
    assert counts == [8, 1, 1, 8, 1, 1, 8]
    hook.close()
    assert sum(_hooks_inside(model)) == 0
    recorded = Recorded(run_dir)
    assert set(recorded.rows("0.1_output_0")) == {0, 3, 6}
    assert set(recorded.rows("CrossEntropyLoss_input_0")) == {0, 3, 6}
    assert set(recorded.rows("CrossEntropyLoss_output_0")) == set(range(7))


def _train(run_dir: Path) -> Hook:
    """Steps that begin in every way: also with a part, and with evaluations between."""
    torch.manual_seed(3)
    model = _model()
    every_third = SaveConfig(statistics_interval=3)
    hook = make_hook(run_dir, save_all=True, save_config=every_third)
    hook.register_module(model)
    criterion: Any = hook.register_loss(nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(8)
    for step in range(12):
        if step in {3, 4}:
            model[0](torch.ones(1, 64))
        for _ in range(2):
            inputs, labels = next(batches)
            criterion(model(inputs), labels).backward()
            if step % 4 == 1:
                model.eval()
                with torch.no_grad():
                    model(inputs)
                    model[1](torch.ones(1, 16))
                model.train()
        optimizer.step()
        optimizer.zero_grad()
        if step == 7:
            hook.get_collection("outputs").save_config = SaveConfig(
                statistics_interval=2
            )
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return hook


def test_nothing_is_missed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hooks that stay.  Sabotaged: put back by forwards only, or never."""
    _train(run_dir / "parked")
    monkeypatch.setattr(RemovableHooks, "set_idle", lambda *_: None)
    _train(run_dir / "stayed")
    parked, stayed = Recorded(run_dir / "parked"), Recorded(run_dir / "stayed")
    assert parked.names == stayed.names
    for name in parked.names:
        one, other = parked.rows(name), stayed.rows(name)
        assert {step: len(rows) for step, rows in one.items()} == {
            step: len(rows) for step, rows in other.items()
        }, name
        for step, rows in one.items():
            means = [row["mean"].tobytes() for row in other[step]]
            assert [row["mean"].tobytes() for row in rows] == means, (name, step)


def test_a_forward_that_wants_something_has_its_hooks(run_dir: Path) -> None:
    """Whoever said before that it is quiet."""
    model = _model()
    hook = make_hook(run_dir)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in itertools.islice(digits(8), 2):
        model(inputs).sum().backward()
        hook._session.idle.set(True)
        assert sum(_hooks_inside(model)) == 0
    optimizer.step()
    hook.close()
    assert [len(rows) for rows in Recorded(run_dir).rows("1_output_0").values()] == [2]
