"""The tables of docs/steps.md: what collections hold, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from torch_helpers import EVERYTHING

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[3] / "docs" / "steps.md"
NAMES = {
    "weights": "fc.weight",
    "biases": "fc.bias",
    "gradients": "gradient/fc.weight",
    "losses": "CrossEntropyLoss_output_0",
    "inputs": "fc_input_0",
    "outputs": "fc_output_0",
    "buffers": "buffer/bn.running_mean",
    "output_gradients": "gradient/fc_output_0",
    "unclipped_gradients": "gradient_unclipped/fc.weight",
    "optimizer_variables": "optimizer/exp_avg/fc.weight",
    "updates": "update/fc.weight",
    "scalars": "scalar/optimizer/group_0/lr",
}
BY_NAME_ONLY = {"output_gradients", "unclipped_gradients"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bn(self.fc(x))
        return result


def recorded(run_dir: Path, **options: Any) -> set[str]:
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    settings: dict[str, Any] = {"save_config": EVERYTHING, "min_free_bytes": 0}
    with td.Hook(run_dir, **settings, **options) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            criterion(model(torch.randn(5, 4)), torch.zeros(5).long()).backward()
            optimizer.step()
            optimizer.zero_grad()
        hook.save_scalar("told", 1.0)
    return set(td.create_trial(run_dir).tensor_names())


def test_the_page_has_these_collections_and_three_more() -> None:
    table = PAGE.read_text().split("## Collections")[1].split("\n## ")[0]
    firsts = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    told = {name for first in firsts for name in re.findall(r"`(\w+)`", first)}
    assert told >= {*NAMES, "default", "all"}


@pytest.mark.parametrize("collection", NAMES)
def test_a_collection_holds_what_the_page_says_and_no_other(
    run_dir: Path, collection: str
) -> None:
    names = recorded(run_dir, include_collections=[collection])
    always = {NAMES["losses"], "scalar/told"}
    assert names >= {NAMES[collection], *always}
    others = {name for key, name in NAMES.items() if key != collection}
    assert not names & (others - always)


def test_all_is_every_tensor_but_two_kinds_of_gradients(run_dir: Path) -> None:
    names = recorded(run_dir, save_all=True)
    for collection, name in NAMES.items():
        assert (name in names) is (collection not in BY_NAME_ONLY), name


# Whether there is a row, and a value.
GIVEN: dict[str, tuple[Callable[[], Any], bool, bool]] = {
    "bool": (lambda: torch.tensor([True]), True, True),
    "float8": (lambda: torch.ones(2).to(torch.float8_e4m3fn), True, True),
    "without elements": (lambda: torch.ones(0, 3), True, True),
    "0-dimensional": (lambda: torch.tensor(1.5), True, True),
    "not contiguous": (lambda: torch.ones(4, 4)[::2, ::2], True, True),
    "expanded": (lambda: torch.ones(1).expand(3), True, True),
    "dates": (lambda: np.array(["2020-01-01"], "datetime64[D]"), False, True),
    "text": (lambda: np.array(["a", "b"]), False, True),
    "longdouble": (lambda: np.ones(2, np.longdouble), False, True),
    "COO": (lambda: torch.eye(3).to_sparse(), True, True),
    "CSR": (lambda: torch.eye(3).to_sparse_csr(), False, False),
    "complex": (lambda: torch.ones(2, dtype=torch.complex64), False, False),
    "mkldnn": (lambda: torch.ones(2).to_mkldnn(), False, False),
    "meta": (lambda: torch.ones(2, device="meta"), False, False),
    "lazily negated": (
        lambda: torch.ones(2, dtype=torch.cfloat).conj().imag,
        False,
        False,
    ),
    "objects": (lambda: np.array([object()]), False, False),
    "ragged": (lambda: [[1, 2], [3]], False, False),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_recorded_of_a_tensor_is_what_the_page_says(
    run_dir: Path, kind: str
) -> None:
    make, has_row, has_value = GIVEN[kind]
    with td.Hook(run_dir, save_config=EVERYTHING, min_free_bytes=0) as hook:
        model = nn.Linear(1, 1)
        hook.register_module(model)
        model(torch.ones(1, 1))
        hook.save_tensor("given", make(), collections_to_write="default")
        assert hook.counters()["internal_errors"] == 0
        n_refused = hook.counters()["refused_tensors"]
    trial = td.create_trial(run_dir)
    steps = {
        what: trial.tensor("given").steps(what=what)
        if trial.has_tensor("given")
        else []
        for what in ("statistics", "values")
    }
    assert (steps["statistics"] == [0], steps["values"] == [0]) == (has_row, has_value)
    assert (n_refused > 0) is not (has_row and has_value) or kind in {
        "dates",
        "text",
        "longdouble",
    }


@pytest.mark.parametrize("dtype", [">f4", ">i8", "longdouble", ">f8"])
def test_a_value_of_another_byte_order_or_width_is_what_was_given(
    run_dir: Path, dtype: str
) -> None:
    given = np.array([1, 2.5, -3]).astype(dtype)
    with td.Hook(run_dir, save_config=EVERYTHING, min_free_bytes=0) as hook:
        hook.register_module(model := nn.Linear(1, 1))
        model(torch.ones(1, 1))
        hook.save_tensor("given", given, collections_to_write="default")
    found = td.create_trial(run_dir).tensor("given")
    assert found.value(0).dtype == np.dtype(dtype).newbyteorder("=")
    assert (found.value(0) == given).all()
    if dtype != "longdouble":
        assert found.reduction_value(0, "max") == given.max()
