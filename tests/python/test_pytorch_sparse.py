"""Sparse gradients: rows over all elements, zeros too, without making them dense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tdbg.hooks.pytorch.sparse import sparse_row
from tdbg.pytorch import ReductionConfig
from torch_helpers import Recorded, make_hook

pytestmark = pytest.mark.torch

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


def test_values_of_sparse_gradients_are_refused_and_the_rest_is_recorded(
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
    assert counters["refused_tensors"] == counters["dropped"] == 1
    assert recorded.values("gradient/words.weight") == {}
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
