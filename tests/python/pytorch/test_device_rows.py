"""Rows and unit counts by PyTorch's operations, against the reference and the core."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from device_helpers import PretendedDevice, forbid_waiting, pretend
from dtype_helpers import DTYPES, numpy_of, of_any_bits
from tdbg import _core
from tdbg.capture.adapter import UnitSummarySpec
from tdbg.errors import StorageError
from tdbg.hooks.pytorch.device import statistics
from tdbg.hooks.pytorch.device.statistics import FIELDS, row_words, unit_table
from tdbg.pytorch import Hook, ModeKeys
from tdbg.stats.reference import Row, row, unit_counts
from tdbg.stats.row_fields import COUNTS
from torch_helpers import Recorded, digits, make_hook, mlp

SIZES = (1, 7, 1000)


def core_row(words: torch.Tensor) -> dict[str, int | float]:
    """The words by name, the extremes as their bits."""
    bits = words.numpy().view(np.uint64)
    values = bits.view(np.float64)
    names = list(Row.__dataclass_fields__)
    return {
        name: int(bits[i]) if i < 7 else float(values[i])
        for i, name in enumerate(names)
    }


def assert_agrees(tensor: torch.Tensor, scale: float = 1.0) -> None:
    """The row is the reference's, and its extremes are the core's to the bit."""
    actual = core_row(row_words(tensor, scale))
    array = numpy_of(tensor)
    is_float = tensor.dtype.is_floating_point
    expected = row(array, scale if is_float else 1.0)
    for name in COUNTS:
        assert actual[name] == getattr(expected, name), name
    n_infinite = expected.positive_infinity + expected.negative_infinity
    finite = expected.count - expected.nan - n_infinite
    if finite == 0:
        return
    core = _core.reduce(array, scale if is_float else 1.0)
    if scale == 1.0:
        for name in ("min", "max"):
            same = np.array([actual[name]], np.uint64)
            if is_float:  # Zeros of either sign are one.
                assert same.view(np.float64)[0] == core[name].view(np.float64), name
            else:
                assert same[0] == core[name].view(np.uint64), name
    assert actual["abs_min"] == pytest.approx(expected.abs_min, rel=1e-15, abs=0)
    tiny = 5e-324 * finite
    for name in ("m2", "l1", "l2"):
        np.testing.assert_allclose(
            actual[name], getattr(expected, name), 2e-12, tiny, err_msg=name
        )
    error = abs(float(actual["mean"]) - expected.mean)
    assert error <= 1e-12 * expected.l1 / finite + tiny


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_type_agrees_with_the_reference(name: str, size: int) -> None:
    assert_agrees(of_any_bits(name, size))


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_a_factor_is_applied_in_float64(name: str) -> None:
    tensor = of_any_bits(name, 300)
    assert_agrees(tensor, 1.0 / 65536.0)
    divisor = torch.tensor(65536.0)
    assert row_words(tensor, divisor).equal(row_words(tensor, 1.0 / 65536.0))


@pytest.mark.parametrize("name", ["int64", "uint64", "bool"])
def test_integers_are_not_multiplied(name: str) -> None:
    tensor = of_any_bits(name, 100)
    assert row_words(tensor, 0.5).equal(row_words(tensor))


@pytest.mark.parametrize(
    "values",
    [
        [1e200, -1e200, 3e200],  # Squares overflow.
        [1e-200, 2e-200, -1e-200],  # Squares underflow.
        [5e-324, -5e-324, 0.0],
        [1e8 + 1, 1e8 + 2, 1e8 + 3],  # A spread that is tiny beside the mean.
        [0.1] * 1001,  # A constant has no variance at all.
        [-0.0, 0.0],
        [math.nan, math.inf, -math.inf],
        [math.nan, 2.0, -math.inf],
        [1.7e308, -1.7e308],
    ],
)
def test_hard_cases(values: list[float]) -> None:
    assert_agrees(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("value", [0.1, 1 / 3, -2.7, 1e8 + 0.1, 3.3e200])
@pytest.mark.parametrize("count", [3, 999, 1001, 77777])
def test_a_constant_is_its_own_mean_and_has_no_variance(
    value: float, count: int
) -> None:
    words = core_row(row_words(torch.full((count,), value, dtype=torch.float64)))
    assert words["mean"] == value
    assert words["m2"] == 0.0


def test_of_no_elements_all_words_are_zero() -> None:
    assert row_words(torch.empty(0, 3)).equal(torch.zeros(FIELDS, dtype=torch.int64))


def test_the_extremes_of_large_integers_are_exact() -> None:
    least, greatest = -(2**63), 2**63 - 1
    words = row_words(torch.tensor([greatest, least, 2**53 + 1]))
    assert words[5:7].tolist() == [least, greatest]
    unsigned = torch.tensor([2**64 - 1, 2**63 + 1], dtype=torch.uint64)
    extremes = row_words(unsigned)[5:7].view(torch.uint64)
    assert extremes.tolist() == [2**63 + 1, 2**64 - 1]


def test_layouts_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(2))
    whole = core_row(row_words(tensor))
    monkeypatch.setattr(statistics, "CHUNK", 64)
    assert_agrees(tensor.t())
    assert_agrees(tensor[::3, 1::2])
    assert_agrees(tensor[0].expand(5, 30))
    assert_agrees(of_any_bits("float16", 1000))
    assert_agrees(of_any_bits("uint64", 1000))
    in_chunks = core_row(row_words(tensor))
    assert in_chunks == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 5, 2, 2), (0, 4), (4, 0)])
def test_units_agree_with_the_reference(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "CHUNK", 8)
    tensor = of_any_bits(name, math.prod(shape)).reshape(shape)
    axis = min(1, len(shape) - 1)
    expected = unit_counts(numpy_of(tensor), axis, -1.0, 2.0)
    question = UnitSummarySpec(-1.0, 2.0)
    assert unit_table(tensor, question).tolist() == expected.tolist()
    by_row = unit_counts(numpy_of(tensor), 0, 0.0, math.inf)
    by_row[0] += by_row[1]
    by_row[1] = 0
    of_rows = unit_table(tensor, UnitSummarySpec(rows_are_units=True))
    assert of_rows.tolist() == by_row.tolist()


# ---- trainings -------------------------------------------------------------------


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
        for step, (found,) in of_here.items():
            assert_same(of_there[step][0], found, name)
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
    hook.close(timeout=1.0)
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
