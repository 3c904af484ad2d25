"""Trainings on a device by PyTorch's operations: what is recorded, and no waiting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from device_helpers import PretendedDevice, forbid_waiting, pretend
from tdbg.errors import StorageError
from tdbg.pytorch import Hook, ModeKeys
from torch_helpers import Recorded, digits, make_hook, mlp


def assert_same(actual: np.void, expected: np.void, name: str) -> None:
    """The rows say the same, as exactly as statistics are."""
    for key in ("count", "nan", "zero", "min", "max", "abs_min"):
        assert actual[key] == expected[key], (name, key)
    for key in ("m2", "l1", "l2"):
        assert float(actual[key]) == pytest.approx(float(expected[key]), rel=2e-7), name
    error = abs(float(actual["mean"]) - float(expected["mean"]))
    assert error * int(expected["count"]) <= 1e-7 * float(expected["l1"]), name


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:
    return pretend(monkeypatch)


def run(hook: Hook, n_steps: int, after: Any = lambda: None) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    hook.register_loss(criterion)
    batches = digits(16)
    for _ in range(n_steps):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        after()


def test_a_training_records_what_the_cpu_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_hook(tmp_path / "cpu") as hook:
        run(hook, 3)
    with monkeypatch.context() as patch:
        device = pretend(patch)
        with make_hook(tmp_path / "device") as hook:
            run(hook, 3, device.catch_up)
    there, here = Recorded(tmp_path / "device"), Recorded(tmp_path / "cpu")
    assert there.names == here.names
    assert there.steps == here.steps
    for name in here.names:
        of_here = here.rows(name)
        of_there = there.rows(name)
        assert of_there.keys() == of_here.keys(), name
        for step, (row,) in of_here.items():
            assert_same(of_there[step][0], row, name)
        values = here.values(name)
        assert there.values(name).keys() == values.keys()
        for step, value in values.items():
            np.testing.assert_array_equal(there.values(name)[step], value)
    assert there.step_table["dropped"].sum() == 0


def test_the_training_never_waits(
    tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path, save_histogram=False)
    with monkeypatch.context() as patch:
        forbid_waiting(patch)
        run(hook, 4)
        assert hook.counters()["internal_errors"] == 0
    assert len(Recorded(tmp_path).steps) == 0, "a step was written before its rows"
    device.is_prompt = True
    hook.close()
    assert [step for step, *_ in Recorded(tmp_path).steps] == [0, 1, 2, 3]


def test_flush_waits_for_the_device(tmp_path: Path, device: PretendedDevice) -> None:
    hook = make_hook(tmp_path)
    run(hook, 2)
    device.catch_up()
    hook.flush()
    assert len(Recorded(tmp_path).steps) == 2
    hook.close()


def test_flush_fetches_of_a_step_that_is_open(
    tmp_path: Path, device: PretendedDevice
) -> None:
    hook = make_hook(tmp_path)
    hook.save_tensor("x", torch.full((3,), 2.0))
    with pytest.raises(StorageError, match="delivered"):
        hook.flush(timeout=0.01)
    device.catch_up()
    hook.flush()
    recorded = Recorded(tmp_path)
    assert float(recorded.rows("x")[0][0]["mean"]) == 2.0
    assert recorded.values("x")[0].tolist() == [2.0] * 3
    assert len(recorded.steps) == 0
    device.is_prompt = True
    hook.close()


def test_what_never_arrives_is_counted(tmp_path: Path, device: PretendedDevice) -> None:
    hook = make_hook(tmp_path, include_collections=["weights"])
    run(hook, 1)
    assert device.n_sent > 0
    hook.close(timeout=0.01)
    recorded = Recorded(tmp_path)
    # Two weights: a value of each, and their rows; and those of the loss.
    assert recorded.step_table["dropped"].tolist() == [2 + 2 + 2]
    assert recorded.rows("fc1.weight") == {}


def test_rows_of_several_streams_go_apart(
    tmp_path: Path, device: PretendedDevice
) -> None:
    sent = {}
    for stream in ("stream 0", "stream 1"):
        hook = make_hook(tmp_path / stream, include_collections=["losses"])
        before, device.stream = device.n_sent, "stream 0"
        hook.save_tensor("a", torch.ones(3))
        device.stream = stream
        hook.save_tensor("b", torch.full((3,), 2.0))
        device.is_prompt = True
        hook.close()
        sent[stream] = device.n_sent - before
        recorded = Recorded(tmp_path / stream)
        means = [float(recorded.rows(name)[0][0]["mean"]) for name in "ab"]
        assert means == [1.0, 2.0]
    assert sent["stream 1"] == sent["stream 0"] + 1


def test_nothing_is_taken_while_a_graph_is_recorded(
    tmp_path: Path, device: PretendedDevice
) -> None:
    hook = make_hook(tmp_path, include_collections=["weights"])
    device.is_recording_graph = True
    run(hook, 1)
    assert device.n_sent == 0
    assert hook.counters()["refused_tensors"] == 6
    hook.close()


def test_histograms_are_refused(tmp_path: Path, device: PretendedDevice) -> None:
    hook = make_hook(tmp_path, save_histogram=True, include_collections=["weights"])
    run(hook, 1)
    device.catch_up()
    assert hook.counters()["refused_tensors"] == 2
    hook.close()
    assert len(Recorded(tmp_path).rows("fc1.weight")) == 1


class _Scaled(torch.optim.SGD):
    """As a fused optimizer: it has the scale and the verdict on its device."""

    _step_supports_amp_scaling = True

    def step(self, _: Any = None) -> None:
        self.zero_grad()


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_a_scaler_whose_numbers_lie_on_the_device(
    found: float,
    tmp_path: Path,
    device: PretendedDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 2)
    optimizer: Any = _Scaled(model.parameters(), lr=0.1)
    optimizer.grad_scale = torch.tensor(1024.0)
    optimizer.found_inf = torch.tensor(found)
    hook = make_hook(tmp_path, include_collections=["gradients"])
    hook.register_module(model)
    with monkeypatch.context() as patch:
        forbid_waiting(patch)
        model(torch.ones(1, 3)).sum().mul(1024.0).backward()
        optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    device.is_prompt = True
    hook.close()
    recorded = Recorded(tmp_path)
    ((_, _, _, flags),) = recorded.steps
    assert flags == int(found)
    (row,) = recorded.rows("gradient/weight")[0]
    assert float(row["mean"]) == pytest.approx(1.0)
    assert int(row["flags"]) == 1


def test_a_scalar_on_a_device_arrives_in_its_step(
    tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(tmp_path)
    with monkeypatch.context() as patch:
        forbid_waiting(patch)
        hook.save_scalar("lr", torch.tensor(0.25))
        hook.save_scalar("bad", torch.ones(2))
    device.is_prompt = True
    hook.close()
    assert Recorded(tmp_path).scalars("scalar/lr") == [(0, 0.25)]
    assert hook.counters()["refused_tensors"] == 1


def test_micro_batches_and_modes(tmp_path: Path, device: PretendedDevice) -> None:
    hook = make_hook(tmp_path, include_collections=["outputs"])
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    inputs = torch.ones(4, 64)
    for _ in range(2):
        model(inputs).sum().backward()
    optimizer.step()
    hook.set_mode(ModeKeys.EVAL)
    model(inputs)
    device.is_prompt = True
    hook.close()
    recorded = Recorded(tmp_path)
    rows = recorded.rows("fc1_output_0")
    assert [int(row["micro_batch"]) for row in rows[0]] == [0, 1]
    assert rows[1][0]["mean"] != rows[0][0]["mean"]
    assert list(recorded.values("fc1_output_0")) == [0, 1]


def test_units_of_a_relu(tmp_path: Path, device: PretendedDevice) -> None:
    hook = make_hook(tmp_path, include_collections=["losses"], rules=["DeadRelu"])
    run(hook, 1)
    device.is_prompt = True
    hook.close()
    (value,) = Recorded(tmp_path).values("unit/relu_output_0").values()
    assert value.shape == (3, 24)
    assert value[2].tolist() == [16] * 24
    assert 0 < int(value[0].sum()) < 16 * 24
    assert math.isfinite(float(value[0].sum()))
