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
from tdbg.hooks.pytorch.device.statistics import sparse_row
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig, watch
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


# ---- sparse gradients ------------------------------------------------------------


FIELDS = ("count", "nan", "positive_infinity", "negative_infinity", "zero")
EXTREMES = ("min", "max")
NUMBERS = ("abs_min", "mean", "m2", "l1", "l2")


def dense_row(run_dir: Path, tensor: torch.Tensor) -> np.void:
    with make_hook(run_dir) as hook:
        hook.save_tensor("t", tensor)
    (row,) = Recorded(run_dir).rows("t")[0]
    return row


def assert_same(row: np.void, expected: np.void) -> None:
    for field in FIELDS:
        assert row[field] == expected[field], field
    for field in EXTREMES:  # Of zeros either sign.
        assert row[field].view(np.float64) == expected[field].view(np.float64), field
    for field in NUMBERS:
        assert row[field] == pytest.approx(expected[field], rel=1e-7, abs=1e-30), field


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(50, 6, sparse=True)
        self.last = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.words(x))
        return result


@pytest.mark.parametrize("kind", ["sgd", "sparse_adam"])
def test_sparse_embedding_gradients_have_the_row_of_the_dense_ones(
    run_dir: Path, kind: str
) -> None:
    """Words that come several times in a batch are added up."""
    model = Embedded()
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model.parameters(), lr=0.1)
    ]
    if kind == "sparse_adam":
        optimizers = [
            torch.optim.SparseAdam(model.words.parameters()),
            torch.optim.SGD(model.last.parameters(), lr=0.1),
        ]
    expected = []
    with make_hook(
        run_dir / "sparse",
        include_collections=[
            "gradients", "unclipped_gradients", "updates", "optimizer_variables"
        ],
        reduction_config=ReductionConfig(),
    ) as hook:  # fmt: skip
        hook.register_module(model)
        hook.register_optimizer(optimizers[-1], defines_step=True)
        for step in range(2):
            model.zero_grad()
            model(torch.tensor([3, 7, 3, 3, 40 + step])).square().sum().backward()
            gradient = model.words.weight.grad
            assert gradient is not None
            assert not gradient.is_coalesced()
            expected.append(gradient.to_dense())
            for optimizer in optimizers:
                optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0
    recorded = Recorded(run_dir / "sparse")
    definition = recorded.by_name["gradient/words.weight"]
    assert (definition.dtype, definition.shape) == ("float32", (50, 6))
    for prefix in ("gradient", "gradient_unclipped"):
        for step, tensor in enumerate(expected):
            (row,) = recorded.rows(f"{prefix}/words.weight")[step]
            directory = run_dir / f"{prefix}{step}"
            assert_same(row, dense_row(directory, tensor))
            assert row["zero"] == 300 - 18
    assert sorted(recorded.rows("update/words.weight")) == [0, 1]
    if kind == "sparse_adam":
        assert sorted(recorded.rows("optimizer/exp_avg/words.weight")) == [0, 1]


def test_values_of_sparse_gradients_are_recorded_with_their_zeros(
    run_dir: Path,
) -> None:
    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=["gradients"]) as hook:
        hook.register_module(model)
        model(torch.tensor([0, 1])).sum().backward()
        optimizer.step()
        counters = hook.counters()
    recorded = Recorded(run_dir)
    assert counters["refused_tensors"] == counters["dropped"] == 0
    values = recorded.values("gradient/words.weight")[0]
    assert values[:2].all()
    assert not values[2:].any()
    assert sorted(recorded.rows("gradient/words.weight")) == [0]
    assert sorted(recorded.values("gradient/last.weight")) == [0]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0],
        [2.5, -4.0, 0.0],
        [-1.0, -3.0],
        [float("nan"), float("inf"), 3.0],
        [float("nan")],
        [1e300, -1e300, 1e299],
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_row_of_a_sparse_tensor_is_that_of_its_dense_form(
    run_dir: Path, values: list[float], scale: float
) -> None:
    places = torch.arange(len(values)).mul(3).reshape(1, -1)
    sparse = torch.sparse_coo_tensor(
        places,
        torch.tensor(values, dtype=torch.float64),
        (40,),
        check_invariants=True,
    )
    computed = sparse_row(sparse, scale)
    assert computed is not None
    assert (computed.dtype, computed.shape) == ("float64", (40,))
    expected = dense_row(run_dir, sparse.to_dense() * scale)
    found = np.zeros((), expected.dtype)
    for field, word in zip((*FIELDS, *EXTREMES, *NUMBERS), computed.words, strict=True):
        is_number = field in NUMBERS
        found[field] = word.view(np.float64) if is_number else word
    assert_same(found[()], expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_tensors_that_have_no_row_are_left_to_be_refused() -> None:
    ones = torch.ones(3, 3)
    for tensor in (
        ones,
        ones.to_sparse_csr(),
        ones.to(torch.complex64).to_sparse(),
        ones.to(torch.int64).to_sparse(),
    ):
        assert sparse_row(tensor, 1.0) is None


class Factors(nn.Module):
    """Factors of a matrix: no parameter has a dense gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users = nn.Embedding(30, 4, sparse=True)
        self.items = nn.Embedding(20, 4, sparse=True)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(1)


def test_a_training_whose_gradients_are_all_sparse_goes_on(run_dir: Path) -> None:
    """The first steps compare gradients, which have no memory of their own here."""
    model, criterion = Factors(), nn.MSELoss()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
    with watch(model, criterion, out=run_dir, budget="off") as hook:
        for _ in range(25):
            users, items = torch.randint(0, 30, (16,)), torch.randint(0, 20, (16,))
            optimizer.zero_grad()
            loss = criterion(model(users, items), torch.randn(16))
            loss.backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    assert create_trial(run_dir).tensor("gradient/users.weight").steps()
