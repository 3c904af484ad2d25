"""Tensors on a device, from a hook to a run, with a CUDA driver that is none.

The kernels run in the emulator; everything between them and the file is the real
thing, and so is what PyTorch would see of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from device_helpers import PretendedDevice, pretend
from dtype_helpers import DTYPES, numpy_of, of_any_bits
from fake_cuda import DeviceTensor, FakeCuda
from tdbg.hooks.pytorch import hook as hook_module
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig
from tdbg.reference import row
from tdbg.trial import create_trial
from torch_helpers import Recorded, bits, make_hook

ROWS_ONLY = SaveConfig(save_interval=10**9, statistics_interval=1)


@pytest.fixture(scope="module")
def driver(cpp_program: Callable[[str], Path]) -> FakeCuda:
    return FakeCuda(cpp_program("libfakecuda.so"))


@pytest.fixture
def cuda(driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two devices; hooks made from now on read their tensors."""
    driver.reset(2)
    monkeypatch.setattr(hook_module, "TYPES", (DeviceTensor,))
    yield driver
    driver.hold(False)
    gc.collect()  # Hooks, and what they hold of the device.
    driver.close()


@pytest.fixture
def fallback(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:  # noqa: ARG001
    """What the kernels leave goes to PyTorch's operations, on the CPU."""
    device = pretend(monkeypatch)
    device.is_prompt = True
    monkeypatch.setattr(hook_module, "TYPES", (DeviceTensor,))
    return device


def rows_hook(path: Path) -> Hook:
    return make_hook(
        path,
        save_config=ROWS_ONLY,
        # Step 0 is on every schedule.
        reduction_config=ReductionConfig(save_raw_tensor=False),
        include_collections=["default"],
    )


def assert_row(actual: np.void, tensor: torch.Tensor, what: str) -> None:
    """As the reference says, within the bounds of statistics."""
    expected = row(numpy_of(tensor.as_subclass(torch.Tensor)))
    for name in ("count", "nan", "positive_infinity", "negative_infinity", "zero"):
        assert int(actual[name]) == getattr(expected, name), (what, name)
    finite = expected.count - expected.nan
    finite -= expected.positive_infinity + expected.negative_infinity
    if finite == 0:
        return
    wide = tensor.dtype == torch.float64 or not tensor.dtype.is_floating_point
    bound = 1e-12 if wide else 1e-7
    tiny = 5e-324 * finite
    for name, times in (("m2", 2), ("l1", 1), ("l2", 1), ("abs_min", 0)):
        value, right = float(actual[name]), getattr(expected, name)
        is_near = abs(value - right) <= times * bound * right + tiny
        assert value == right or is_near, (what, name)
    error = abs(float(actual["mean"]) - expected.mean)
    assert error <= bound * expected.l1 / finite + tiny, what


@pytest.mark.parametrize("name", DTYPES)
def test_every_type(name: str, tmp_path: Path, cuda: FakeCuda) -> None:
    tensors = {
        f"{size}": cuda.put(of_any_bits(name, size)) for size in (1, 17, 4099, 40_000)
    }
    with rows_hook(tmp_path) as hook:
        for key, tensor in tensors.items():
            hook.save_tensor(key, tensor)
        state = hook.device_state()[0]
        assert state["is_usable"], state
        assert state["rows"] == len(tensors)
        assert hook.counters()["refused_tensors"] == 0
    recorded = Recorded(tmp_path)
    for key, tensor in tensors.items():
        (found,) = recorded.rows(key)[0]
        assert_row(found, tensor, f"{name} {key}")


def test_values_units_and_layouts(tmp_path: Path, cuda: FakeCuda) -> None:
    whole = cuda.put(torch.randn(6, 8, 4))
    with make_hook(tmp_path) as hook:
        hook.save_tensor("whole", whole)
        hook.save_tensor("empty", cuda.put(torch.empty(0, 3)))
        hook.save_tensor("number", cuda.put(torch.tensor(2.5)))
    recorded = Recorded(tmp_path)
    assert recorded.values("whole")[0].tobytes() == bits(whole)
    assert recorded.values("number")[0] == 2.5
    assert int(recorded.rows("empty")[0][0]["count"]) == 0
    assert recorded.step_table["dropped"].sum() == 0


def test_what_is_not_contiguous(
    tmp_path: Path, cuda: FakeCuda, fallback: PretendedDevice
) -> None:
    strided = cuda.put(torch.arange(12.0).reshape(3, 4)).t()
    strided.device_index = 0
    with make_hook(tmp_path / "values") as hook:
        hook.save_tensor("x", strided)
        assert fallback.n_sent == 1, "its value goes by way of PyTorch"
    with rows_hook(tmp_path / "rows") as hook:
        hook.save_tensor("x", strided)
        assert hook.device_state()[0]["rows"] == 1
    recorded = Recorded(tmp_path / "values")
    assert recorded.values("x")[0].tolist() == strided.tolist()
    for each in (recorded, Recorded(tmp_path / "rows")):
        assert float(each.rows("x")[0][0]["mean"]) == 5.5


def test_rows_arrive_when_the_device_has_made_them(
    tmp_path: Path, cuda: FakeCuda
) -> None:
    tensor = cuda.put(torch.arange(100.0))
    hook = rows_hook(tmp_path)
    cuda.hold(True)
    hook.save_tensor("x", tensor)
    hook.set_mode(None)
    assert Recorded(tmp_path).rows("x") == {}
    cuda.hold(False)
    hook.close()
    (found,) = Recorded(tmp_path).rows("x")[0]
    assert float(found["mean"]) == 49.5


def test_two_devices(tmp_path: Path, cuda: FakeCuda) -> None:
    with rows_hook(tmp_path) as hook:
        for device in range(2):
            hook.save_tensor(
                f"{device}", cuda.put(torch.full((9,), 1.0 + device), device)
            )
        assert sorted(hook.device_state()) == [0, 1]
    recorded = Recorded(tmp_path)
    for device in range(2):
        assert float(recorded.rows(f"{device}")[0][0]["mean"]) == 1.0 + device


@pytest.mark.usefixtures("fallback")
def test_the_run_tells_how_devices_were_taken(tmp_path: Path, cuda: FakeCuda) -> None:
    with rows_hook(tmp_path / "first") as hook:
        hook.save_tensor("a", cuda.put(torch.arange(8.0)))
        hook.save_tensor("b", cuda.put(torch.arange(8.0), 1))
    cost = create_trial(tmp_path / "first").overhead()
    assert [each["device"] for each in cost.devices] == [0, 1]
    assert all(each["is_usable"] and each["rows"] == 1 for each in cost.devices)
    assert cost.to_json()["devices"][1]["worker"] == 0
    assert "device" not in str(cost)
    cuda.fail("cuLaunchKernel", 1, 719)
    with rows_hook(tmp_path / "second") as hook:
        hook.save_tensor("a", cuda.put(torch.arange(8.0)))
    text = str(create_trial(tmp_path / "second").overhead())
    assert "; device 0 without kernels: cuLaunchKernel: " in text


def test_a_launch_that_fails_leaves_the_tensors_to_pytorch(
    tmp_path: Path, cuda: FakeCuda, fallback: PretendedDevice
) -> None:
    hook = rows_hook(tmp_path)
    hook.save_tensor("before", cuda.put(torch.ones(5)))
    cuda.fail("cuLaunchKernel", 1)
    for name in ("during", "after"):
        hook.save_tensor(name, cuda.put(torch.full((5,), 2.0)))
    state = hook.device_state()[0]
    hook.close()
    assert not state["is_usable"]
    assert "cuLaunchKernel" in state["reason"]
    assert hook.counters()["internal_errors"] == 0
    recorded = Recorded(tmp_path)
    assert float(recorded.rows("after")[0][0]["mean"]) == 2.0
    assert fallback.n_sent > 0


def test_a_scale_on_the_device_divides(tmp_path: Path, cuda: FakeCuda) -> None:
    with rows_hook(tmp_path) as hook:
        recorder = hook._session.recorder
        hook.save_tensor("x", cuda.put(torch.ones(1)))  # Opens the step.
        context = hook._session.module_called(hook._current_mode())
        assert context is not None
        plan = recorder.plan("g", 2)
        recorder.take(
            context,
            [plan],
            [cuda.put(torch.full((1000,), 512.0))],
            [1],
            scale=cuda.put(torch.tensor(1024.0)),
        )
    (found,) = Recorded(tmp_path).rows("g")[0]
    assert float(found["mean"]) == 0.5
    assert int(found["flags"]) == 1


class _ByDlpack:
    """Another library's array."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.tensor.device_index


class _ByInterface:
    """One that is older than DLPack."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self.tensor.data_ptr()
        return {"data": (address, False), "shape": self.tensor.shape, "version": 3}


@pytest.mark.parametrize("kind", [_ByDlpack, _ByInterface])
def test_arrays_of_other_libraries_are_taken_where_they_lie(
    kind: Any, tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What PyTorch makes of them; here it has no CUDA.
    module = torch.utils.dlpack if kind is _ByDlpack else torch
    name = "from_dlpack" if kind is _ByDlpack else "as_tensor"
    monkeypatch.setattr(module, name, lambda array: array.tensor)
    with rows_hook(tmp_path) as hook:
        hook.save_tensor("x", kind(cuda.put(torch.arange(5.0))))
        assert hook.device_state()[0]["rows"] == 1
    assert float(Recorded(tmp_path).rows("x")[0][0]["mean"]) == 2.0


def test_an_array_that_pytorch_cannot_read_is_refused(
    tmp_path: Path, cuda: FakeCuda
) -> None:
    with rows_hook(tmp_path) as hook:
        hook.save_tensor("x", _ByInterface(cuda.put(torch.arange(5.0))))
        counters = hook.counters()
        assert counters["refused_tensors"] == 1
        assert counters["internal_errors"] == 0
