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
from torch import nn

from device_helpers import PretendedDevice, pretend
from dtype_helpers import DTYPES, numpy_of, of_any_bits
from fake_cuda import DeviceTensor, FakeCuda
from tdbg.capture import events
from tdbg.hooks.pytorch import adapter as adapter_module
from tdbg.hooks.pytorch.device import tensors
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig
from tdbg.stats.reference import row
from tdbg.stats.row_fields import COUNTS
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
    monkeypatch.setattr(adapter_module, "TYPES", (DeviceTensor,))
    yield driver
    driver.hold(False)
    gc.collect()  # Hooks, and what they hold of the device.
    driver.close()


@pytest.fixture
def fallback(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:  # noqa: ARG001
    """What the kernels leave goes to PyTorch's operations, on the CPU."""
    device = pretend(monkeypatch)
    device.is_prompt = True
    monkeypatch.setattr(adapter_module, "TYPES", (DeviceTensor,))
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
    for name in COUNTS:
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
        context = hook._session.module_called(hook._mode.now())
        assert context is not None
        entry = recorder.entry("g", 2)
        recorder.take(
            context,
            [entry],
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


# ---- raw values: who waits for the copies, and when ------------------------------


VALUES_ONLY = SaveConfig(save_interval=1, statistics_interval=10**9)
WAIT = "cuStreamWaitEvent"


class Scale(nn.Module):
    """One weight, which lies on the device."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        weight: Any = cuda.put(torch.arange(64.0))
        weight._is_param = True
        self.weight = weight.requires_grad_()
        self.fails = False

    def forward(self) -> torch.Tensor:
        if self.fails:
            raise ArithmeticError
        weight = self.weight.as_subclass(torch.Tensor)
        return (weight * 2.0).sum()


class Watched:
    """A training of it, by hand, with what a hook recorded."""

    def __init__(self, path: Path, cuda: FakeCuda, **options: Any) -> None:
        settings = {"save_config": VALUES_ONLY, "include_collections": ["weights"]}
        self.path = path
        self.cuda = cuda
        self.model = Scale(cuda)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.hook: Hook = make_hook(path, **{**settings, **options})
        self.hook.register_module(self.model)
        self.hook.register_optimizer(self.optimizer)

    def copies(self) -> int:
        state = self.hook.device_state()
        return int(state[0]["copies"]) if state else 0

    def waits(self) -> int:
        return self.cuda.calls(WAIT)

    def arrive(self) -> None:
        """The device does all it was told, before the host changes its memory."""
        self.cuda.hold(False)
        self.hook.flush()

    def close(self) -> Recorded:
        self.cuda.hold(False)
        self.hook.close()
        assert self.hook.counters()["internal_errors"] == 0
        return Recorded(self.path)

    def value(self, step: int) -> list[float]:
        found: list[float] = (
            create_trial(self.path).tensor("weight").value(step).tolist()
        )
        return found


@pytest.fixture
def watched(
    tmp_path: Path,
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Watched]:
    """Makes one, of tensors that are on the device by their type."""
    monkeypatch.setattr(
        tensors, "is_on_device", lambda tensor: isinstance(tensor, DeviceTensor)
    )
    return lambda **options: Watched(tmp_path, cuda, **options)


def test_only_the_optimizer_waits_for_weights(watched: Callable[..., Watched]) -> None:
    run = watched()
    run.cuda.hold(True)
    loss = run.model()
    assert run.copies() == 1, "the copy begins with the forward"
    before = run.waits()  # The copy's own, for what made the weight.
    loss.backward()
    assert run.waits() == before, "the training waits for the copy too early"
    seen = []

    def about_to_step(*_: Any) -> None:
        seen.append((run.waits(), run.copies()))
        run.arrive()

    run.optimizer.register_step_pre_hook(about_to_step)
    run.optimizer.step()
    assert seen == [(before + 1, 1)], "one wait, and no second copy"
    assert run.close().step_table["dropped"].sum() == 0
    assert run.value(0) == [float(i) for i in range(64)]


def test_every_micro_batch_has_the_same_weights(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No step is recorded but for what it has.
    monkeypatch.setattr(events, "STEP_RECORD_NS", 10**18)
    run = watched()
    for _ in range(2):
        for _ in range(3):
            run.model().backward()
        run.arrive()
        run.optimizer.step()
    assert run.copies() == 2
    assert run.hook.counters()["refused_tensors"] == 0
    recorded = run.close()
    assert len(recorded.values("weight")) == 2
    assert len(recorded.step_table) == 2


def test_an_evaluation_within_the_step_has_the_weights_too(
    watched: Callable[..., Watched],
) -> None:
    run = watched()
    run.model()
    run.model.eval()
    run.model()
    run.arrive()
    assert run.copies() == 2
    assert len(run.close().values("weight")) == 2


def test_rows_are_those_that_the_optimizer_uses(
    watched: Callable[..., Watched],
) -> None:
    every = SaveConfig(save_interval=1, statistics_interval=1)
    run = watched(save_config=every, include_collections=["weights", "gradients"])
    run.model().backward()
    assert run.hook.device_state()[0]["rows"] == 0
    run.optimizer.register_step_pre_hook(lambda *_: run.arrive())
    run.optimizer.step()
    recorded = run.close()
    assert float(recorded.rows("weight")[0][0]["mean"]) == 31.5
    assert float(recorded.rows("gradient/weight")[0][0]["mean"]) == 2.0
    assert recorded.values("weight")[0].tolist() == [float(i) for i in range(64)]
    assert recorded.values("gradient/weight")[0].tolist() == [2.0] * 64


def test_a_weight_changed_before_the_optimizer_is_taken_again(
    watched: Callable[..., Watched],
) -> None:
    run = watched()
    loss = run.model()
    run.arrive()
    with torch.no_grad():
        run.model.weight.add_(100.0)
    loss.backward()
    run.optimizer.register_step_pre_hook(lambda *_: run.arrive())
    run.optimizer.step()
    assert run.copies() == 2
    recorded = run.close()
    assert recorded.step_table["dropped"].tolist() == [0], "it was taken after all"
    assert run.value(0) == [100.0 + i for i in range(64)], "the later one counts"


def test_a_weight_changed_in_a_step_that_never_ends_is_counted(
    watched: Callable[..., Watched],
) -> None:
    run = watched()
    run.model()
    run.arrive()
    with torch.no_grad():
        run.model.weight.add_(100.0)
    assert run.close().step_table["dropped"].tolist() == [1]


def test_a_weight_changed_after_a_forward_that_raised_is_counted(
    watched: Callable[..., Watched],
) -> None:
    run = watched()
    run.model.fails = True
    with pytest.raises(ArithmeticError):
        run.model()
    run.arrive()
    with torch.no_grad():
        run.model.weight.add_(100.0)
    run.model.fails = False
    assert run.hook.counters()["refused_tensors"] == 0
    run.model()
    assert run.hook.counters()["refused_tensors"] == 1
    run.close()


def test_memory_lives_until_it_was_copied(watched: Callable[..., Watched]) -> None:
    run = watched()
    run.model()
    (copy,) = run.hook._module_captures[0].parameters.early.copies
    address = run.model.weight.data_ptr()
    run.model.weight.data = torch.zeros(64)
    assert copy.alias.data_ptr() == address
    run.arrive()
    run.close()
    assert run.value(0) == [float(i) for i in range(64)]


def test_values_by_hand_are_waited_for_at_once(
    watched: Callable[..., Watched],
) -> None:
    run = watched()
    run.cuda.hold(True)
    tensor = run.cuda.put(torch.arange(8.0))
    run.hook.save_tensor("first", tensor, "weights")
    first = run.waits()
    run.hook.save_tensor("second", tensor, "weights")
    second = run.waits() - first
    run.cuda.hold(False)
    # Each has the copy wait for the tensor, and the stream for the copy.
    assert (first, second) == (2, 2)
    recorded = run.close()
    assert recorded.values("second")[0].tolist() == list(range(8))


def test_weights_of_inference_mode_are_taken(watched: Callable[..., Watched]) -> None:
    with torch.inference_mode():
        run = watched()
        run.model.weight.requires_grad_(False)
        assert run.model.weight.is_inference()
    run.model()
    run.arrive()
    assert run.close().step_table["dropped"].tolist() == [0]
    assert run.value(0) == [float(i) for i in range(64)]
