"""Tensors that nobody expects: a documented row or a counted refusal, no exception.

docs/steps.md, "What is refused", has the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from tdbg import create_trial
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig
from torch_helpers import Recorded, make_hook

pytestmark = pytest.mark.torch


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


class Dispatching(torch.Tensor):
    """A subclass that does everything itself."""

    @classmethod
    def __torch_dispatch__(cls, *_: object, **__: object) -> object:
        raise AssertionError


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "complex64": lambda: torch.ones(3, dtype=torch.complex64),
    "complex128": lambda: torch.ones(3, dtype=torch.complex128),
    "meta": lambda: torch.empty(3, device="meta"),
    "fake": fake,
    "freed": freed,
    "coo of integers": lambda: torch.ones(3, 3, dtype=torch.int64).to_sparse(),
    "csr": lambda: torch.ones(3, 3).to_sparse_csr(),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "quantized": quantized,
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "negated": lambda: torch.view_as_complex(torch.ones(3, 2)).conj().imag,
    "dispatching": lambda: torch.ones(3).as_subclass(Dispatching),
    "zero tensor": lambda: torch._efficientzerotensor(3),
}


class Yields(nn.Module):
    """Has a strange output beside an ordinary one."""

    def __init__(self, make: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.make(), x + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_refused_in_a_forward_and_by_hand(
    run_dir: Path, kind: str
) -> None:
    make = REFUSED[kind]
    model = nn.Sequential(Yields(make))
    with make_hook(run_dir, include_collections=["outputs"]) as hook:
        hook.register_module(model)
        model(torch.ones(2))
        hook.save_tensor("given", make())
        hook.record_tensor_value("loss", make())
    counters = hook.counters()
    assert counters["internal_errors"] == 0
    # The output of the module is that of the root, too.
    assert counters["refused_tensors"] == 4
    assert counters["dropped"] == 4
    assert counters["offered"] == counters["written"] + counters["dropped"]
    assert Recorded(run_dir).values("0_output_1")[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3, 2), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_empty_and_single_elements_have_rows(
    run_dir: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def make() -> torch.Tensor:
        return torch.ones(shape, dtype=dtype)

    model = nn.Sequential(Yields(make))
    with make_hook(run_dir, include_collections=["outputs"]) as hook:
        hook.register_module(model)
        model(torch.ones(2))
        hook.save_tensor("t", make())
    assert hook.counters()["refused_tensors"] == hook.counters()["dropped"] == 0
    recorded = Recorded(run_dir)
    for name in ("0_output_0", "t"):
        (row,) = recorded.rows(name)[0]
        assert row["count"] == np.prod(shape, dtype=int)
        assert recorded.values(name)[0].shape == shape
    trial = create_trial(run_dir)
    mean = trial.tensor("t").reduction_value(0, "mean")
    assert np.isnan(mean) if 0 in shape else mean == 1.0


def test_many_dimensions_are_captured(run_dir: Path) -> None:
    """More than the core reads by itself: Python does then."""
    tensors = {n: torch.ones((2,) * n) for n in (8, 9, 16)}
    with make_hook(run_dir) as hook:
        for n, tensor in tensors.items():
            hook.save_tensor(f"t{n}", tensor)
            model = nn.Sequential(Yields(lambda tensor=tensor: tensor.transpose(0, 1)))
            hook.register_module(model, name=f"m{n}")
            model(torch.ones(2))
    assert hook.counters()["refused_tensors"] == 0
    recorded = Recorded(run_dir)
    for n in tensors:
        assert recorded.by_name[f"t{n}"].shape == (2,) * n
        assert recorded.by_name[f"m{n}.0_output_0"].shape == (2,) * n


def test_more_than_two_to_the_31_elements_have_a_row(run_dir: Path) -> None:
    """Expanded from 4 KiB: 2**31 + 2**12 elements, and no memory for them."""
    few = torch.zeros(1 << 12, dtype=torch.int8)
    few[7] = -3
    n_times = (1 << 19) + 1
    many = few.expand(n_times, 1 << 12)
    hook = Hook(
        run_dir,
        save_all=True,
        save_config=SaveConfig(statistics_interval=1),
        reduction_config=ReductionConfig(),
        min_free_bytes=0,
    )
    with hook:
        hook.save_tensor("many", many)
    assert hook.counters()["refused_tensors"] == hook.counters()["dropped"] == 0
    (row,) = Recorded(run_dir).rows("many")[0]
    assert row["count"] == many.numel() > 1 << 31
    assert row["zero"] == many.numel() - n_times
    assert row["l1"] == 3.0 * n_times
    trial = create_trial(run_dir)
    assert trial.tensor("many").reduction_value(0, "min") == -3


def test_a_value_larger_than_the_queue_is_dropped_and_its_row_kept(
    run_dir: Path,
) -> None:
    with make_hook(run_dir, queue_bytes=16 << 20) as hook:
        hook.save_tensor("large", torch.ones(5 << 20))
    assert hook.counters()["dropped"] == 1
    recorded = Recorded(run_dir)
    assert recorded.rows("large")[0][0]["count"] == 5 << 20
    assert recorded.values("large") == {}
