"""Raw values on a device: who waits for the copies, and when.

With a CUDA driver that is none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fake_cuda import DeviceTensor, FakeCuda
from tdbg.capture import records
from tdbg.hooks.pytorch import tensors
from tdbg.pytorch import Hook, SaveConfig
from tdbg.trial import create_trial
from test_device_capture import cuda, driver  # noqa: F401 - fixtures
from torch_helpers import Recorded, make_hook

VALUES_ONLY = SaveConfig(save_interval=1, statistics_interval=10**9)
WAIT = "cuStreamWaitEvent"


class Scale(nn.Module):
    """One weight, which lies on the device."""

    def __init__(self, cuda: FakeCuda) -> None:  # noqa: F811
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

    def __init__(self, path: Path, cuda: FakeCuda, **options: Any) -> None:  # noqa: F811
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
    cuda: FakeCuda,  # noqa: F811
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
    monkeypatch.setattr(records, "QUIET_NS", 10**18)
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
    (copy,) = run.hook._taps[0].parameters.early.copies
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
