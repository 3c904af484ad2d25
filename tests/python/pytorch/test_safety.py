"""The hook never hurts the training, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import json
import logging
import os
import pickle
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as torch_module

from tdbg.capture.process import MAX_FAULTS
from tdbg.errors import ConfigurationError, TrainingStopped, UnknownRule
from tdbg.pytorch import Hook, ReductionConfig
from tdbg.run.requests import request_stop
from torch_helpers import Recorded, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch


def hooked(run_dir: Path, **options: Any) -> tuple[Hook, nn.Module, nn.Module, Any]:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    hook = make_hook(run_dir, **options)
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook, model, criterion, torch.optim.SGD(model.parameters(), lr=0.1)


def hooks_of(*holders: Any) -> dict[str, Any]:
    """All dicts of hooks that these have, by holder and name, and what is in them."""
    found = {}
    for number, holder in enumerate(holders):
        for name in dir(holder):
            if "hook" in name:
                value = getattr(holder, name)
                if isinstance(value, Mapping | set):
                    found[f"{number}{name}"] = list(value)
    return found


def test_close_takes_every_hook_off(run_dir: Path) -> None:
    """Sabotaged: with any ``remove`` left out some dict has one more."""
    collections = ["output_gradients", "gradients", "buffers", "inputs", "outputs"]
    model, criterion, kept = mlp(), nn.CrossEntropyLoss(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    leaf = torch.ones(1, 64, requires_grad=True)

    def all_hooks() -> dict[str, Any]:
        modules = [*model.modules(), criterion]
        tensors = [*model.parameters(), leaf, *kept]
        processes = [torch_module, sys.modules["torch.optim.optimizer"]]
        found = hooks_of(*modules, optimizer, *processes, *tensors)
        found["methods"] = [
            each.__dict__[name]
            for each, name in (
                (GradScaler, "_maybe_opt_step"),
                (torch.cuda.CUDAGraph, "capture_begin"),
                (torch.cuda.CUDAGraph, "capture_end"),
                (torch.cuda.CUDAGraph, "replay"),
            )
            if name in each.__dict__
        ]
        return found

    before = all_hooks()
    assert len(before) > 50
    hook = make_hook(run_dir, include_collections=collections)
    hook.register_module(model)
    hook.register_loss(criterion)
    hook.register_optimizer(optimizer)
    train(model, criterion, optimizer, digits(8), 2)
    kept.append(model(leaf))
    during = all_hooks()
    changed = {name for name in during if during[name] != before.get(name, [])}
    assert {name.lstrip("0123456789") for name in changed} >= {
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_optimizer_step_pre_hooks",
        "_global_module_registration_hooks",
        "_global_optimizer_pre_hooks",
        "methods",
    }
    assert hook.close()
    after = all_hooks()
    left = {name: each for name, each in after.items() if each != before.get(name, [])}
    assert left == {}
    train(model, criterion, optimizer, digits(8), 1)
    assert hook.close()
    assert len(Recorded(run_dir).steps) == 3


def test_close_takes_off_hooks_of_gradients_without_an_optimizer(run_dir: Path) -> None:
    model = mlp()
    parameters = list(model.parameters())
    before = hooks_of(*parameters)
    hook = make_hook(run_dir)
    hook.register_module(model)
    for _ in range(2):
        model(torch.ones(1, 64)).sum().backward()
    during = hooks_of(*parameters)
    assert sum(map(len, during.values())) == len(parameters)
    hook.close()
    after = hooks_of(*parameters)
    assert {name: each for name, each in after.items() if each} == before


def copies(model: nn.Module) -> list[nn.Module]:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),  # noqa: S301 - made here
        torch.load(buffer, weights_only=False),
    ]


def test_a_hooked_model_can_be_copied_and_its_copies_are_not_captured(
    run_dir: Path,
) -> None:
    model, criterion = nn.Sequential(nn.Linear(64, 10), nn.ReLU()), nn.MSELoss()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for each in (*copies(model), *copies(criterion)):
            if isinstance(each, nn.Sequential):
                each(torch.ones(1, 64)).sum().backward()
            else:
                each(torch.ones(2), torch.ones(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pickle.dumps(optimizer)
        copy.deepcopy(optimizer)
    assert Recorded(run_dir).steps == []


def test_a_copy_of_a_hooked_model_loads_without_tdbg(
    run_dir: Path, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        torch.save(model, tmp_path / "model.pt")
    program = (
        "import sys, torch\n"
        "sys.modules['tdbg'] = None\n"
        "model = torch.load(sys.argv[1], weights_only=False)\n"
        "print(tuple(model(torch.ones(1, 3)).shape))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 2)\n", done.stderr


def test_errors_inside_never_reach_the_training(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sabotaged: with a bare call in Session.run the first step raises."""
    hook, model, criterion, optimizer = hooked(run_dir)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError

    monkeypatch.setattr(hook._session, "take", fail)
    with caplog.at_level(logging.WARNING, "tdbg"):
        plain = mlp()
        expected = train(
            plain,
            nn.CrossEntropyLoss(),
            torch.optim.SGD(plain.parameters(), lr=0.1),
            digits(8),
            10,
        )
        assert train(model, criterion, optimizer, digits(8), 10) == expected
    assert hook.counters()["internal_errors"] == MAX_FAULTS
    assert not hook.counters()["is_live"]
    assert len(caplog.records) == 2
    assert hook.close()


def test_a_disabled_hook_does_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_DISABLED", "1")
    hook = Hook(run_dir, include_collections=["no such"], overflow="no such")
    model, criterion = mlp(), nn.CrossEntropyLoss()
    hook.register_module(model)
    assert hook.register_loss(criterion) is criterion
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    train(model, criterion, optimizer, digits(8), 1)
    hook.save_scalar("x", 1)
    hook.save_tensor("x", torch.ones(1))
    hook.record_tensor_value("x", torch.ones(1))
    hook.flush()
    assert not any(hooks_of(*model.modules(), criterion).values())
    assert hook.close()
    assert not run_dir.exists()


def test_a_dry_run_writes_nothing(run_dir: Path) -> None:
    hook, model, criterion, optimizer = hooked(run_dir, dry_run=True)
    train(model, criterion, optimizer, digits(8), 3)
    assert hook.overhead().steps == 3
    assert hook.close()
    assert not run_dir.exists()


def test_a_stop_is_raised_at_the_next_forward_and_never_earlier(run_dir: Path) -> None:
    hook, model, criterion, optimizer = hooked(run_dir)
    train(model, criterion, optimizer, digits(8), 2)
    inputs, labels = next(digits(8))
    loss = criterion(model(inputs), labels)
    request_stop(run_dir, reason="for the test")
    loss.backward()
    optimizer.step()
    assert not hook.should_stop
    with pytest.raises(TrainingStopped, match="for the test"):
        _forward_until_stopped(model, inputs)
    assert hook.should_stop
    model.eval()
    model(inputs)  # A last evaluation may go on; training may not.
    model.train()
    with pytest.raises(TrainingStopped):
        model(inputs)
    hook.close()
    recorded = Recorded(run_dir)
    assert all(flags == 0 for *_, flags in recorded.steps[:3])
    assert recorded.events(5)[-1] == {"training": "stopped", "reason": "for the test"}


def _forward_until_stopped(model: nn.Module, inputs: torch.Tensor) -> None:
    import time

    end = time.monotonic() + 120
    while time.monotonic() < end:  # The listener looks ten times a second.
        model(inputs)


def test_a_stop_can_be_a_flag(run_dir: Path) -> None:
    hook, model, criterion, optimizer = hooked(run_dir, on_stop="flag")
    request_stop(run_dir, reason="for the test")
    batches = digits(8)
    for _ in range(10_000):
        train(model, criterion, optimizer, batches, 1)
        if hook.should_stop:
            break
    assert hook.stop_reason == "for the test"
    hook.close()


def test_a_new_hook_takes_a_module_over(run_dir: Path, tmp_path: Path) -> None:
    old, model, criterion, optimizer = hooked(run_dir)
    train(model, criterion, optimizer, digits(8), 1)
    new = make_hook(tmp_path / "new")
    new.register_module(model)
    new.register_module(model)
    train(model, criterion, optimizer, digits(8), 2)
    new.close()
    assert len(Recorded(run_dir).steps) == 1
    assert Recorded(run_dir).events(5)[-1]["reason"] == (
        "another hook took over the module"
    )
    assert len(Recorded(tmp_path / "new").steps) == 2
    assert not old.counters()["is_live"]


def test_a_second_run_in_a_directory_is_a_new_attempt(run_dir: Path) -> None:
    for n_steps in (1, 2):
        hook, model, criterion, optimizer = hooked(run_dir)
        train(model, criterion, optimizer, digits(8), n_steps)
        hook.close()
    names = sorted(path.name for path in (run_dir / "w").iterdir())
    assert names == ["train-0-1", "train-0-2"]
    assert len(Recorded(run_dir).steps) == 2


def test_the_hook_keeps_no_model_alive_and_ends_with_it(run_dir: Path) -> None:
    hook, model, criterion, optimizer = hooked(run_dir)
    train(model, criterion, optimizer, digits(8), 1)
    alive = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert alive() is None
    assert not hook._session.machine.optimizers
    del hook, criterion
    gc.collect()
    assert Recorded(run_dir).events(5)[-1]["training"] == "ended"


@pytest.mark.parametrize(
    "contain",
    [nn.ModuleList, lambda parts: nn.ModuleDict({"one": parts[0], "two": parts[1]})],
)
def test_a_container_that_nobody_else_holds_is_captured(
    run_dir: Path, contain: Callable[[list[nn.Module]], nn.Module]
) -> None:
    one, two = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], 0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(contain([one, two]))
        gc.collect()
        for _ in range(4):
            optimizer.zero_grad()
            two(one(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
    assert len(Recorded(run_dir).steps) == 4
    kept = weakref.ref(one)
    del one, two, optimizer
    gc.collect()
    assert kept() is None


def test_a_forked_child_records_nothing_and_the_parent_goes_on(run_dir: Path) -> None:
    hook, model, criterion, optimizer = hooked(run_dir)
    train(model, criterion, optimizer, digits(8), 1)
    child = os.fork()
    if child == 0:
        try:
            was_live = hook.counters()["is_live"]
            hook.save_scalar("child", 1.0)
            hook.close()
            os._exit(was_live)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    train(model, criterion, optimizer, digits(8), 1)
    assert hook.close()
    recorded = Recorded(run_dir)
    assert len(recorded.steps) == 2
    assert "scalar/child" not in recorded.names


@pytest.mark.slow
def test_a_program_that_does_not_close_loses_nothing(run_dir: Path) -> None:
    program = (
        "import sys, torch, tdbg.pytorch as td\n"
        "hook = td.Hook(sys.argv[1], min_free_bytes=0)\n"
        "hook.save_scalar('x', 1.5)\n"
        "raise ZeroDivisionError('not to be told: password=1')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run_dir)], check=False, capture_output=True
    )
    assert done.returncode == 1
    recorded = Recorded(run_dir)
    assert recorded.scalars("scalar/x") == [(0, 1.5)]
    status = recorded.events(5)[-1]
    assert status == {"training": "ended", "reason": "ZeroDivisionError"}


def test_the_configuration_event_tells_nothing_of_the_environment(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tops3cret")
    with make_hook(run_dir) as hook:
        hook.save_scalar("x", 1)
    (event,) = Recorded(run_dir).events(1)
    assert set(event) == {
        "tdbg",
        "python",
        "framework",
        "statistics",
        "hardware",
        "hook",
        "rank",
        "world_size",
        "profiler",
        "program_start_ns",
        "workers",
    }
    assert event["framework"]["name"] == "pytorch"
    assert "tops3cret" not in json.dumps(event)
    assert event["hardware"]["cores"] == len(os.sched_getaffinity(0))
    assert event["hardware"]["memory"] > 1 << 20
    assert platform.node() not in json.dumps(event["hardware"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"include_collections": ["wieghts"]}, ConfigurationError, "'weights'"),
        ({"overflow": "dropp"}, ConfigurationError, "did you mean 'drop'"),
        ({"on_stop": "rise"}, ConfigurationError, "did you mean 'raise'"),
        ({"queue_bytes": "1 GB"}, ConfigurationError, "queue_bytes"),
        ({"include_regex": "("}, ConfigurationError, "not a regular expression"),
        ({"save_config": 3}, ConfigurationError, "must be a SaveConfig"),
        ({"reduction_config": 3}, ConfigurationError, "must be a ReductionConfig"),
        ({"rules": ["DeadRelo"]}, UnknownRule, "DeadRelu"),
    ],
)
def test_a_bad_configuration_raises_at_once_and_leaves_nothing(
    run_dir: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Hook(run_dir, **options)
    assert not run_dir.exists()


def test_what_cannot_be_registered_is_refused(run_dir: Path) -> None:
    with make_hook(run_dir, reduction_config=ReductionConfig()) as hook:
        with pytest.raises(ConfigurationError, match=r"needs an nn\.Module, not int"):
            hook.register_module(3)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="something to call, not 3"):
            hook.register_loss(3)  # type: ignore[type-var]
        with pytest.raises(ConfigurationError, match="not function"):
            hook.register_optimizer(lambda: 0)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="one of ModeKeys"):
            hook.set_mode("TRAIN")  # type: ignore[arg-type]
