"""What is recorded of a real training is what a copy by hand would have held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from torch_helpers import Recorded, bits, cnn, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch

N_STEPS = 4


def by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: bool
) -> list[dict[str, torch.Tensor]]:
    """Train, copying at each step what the hook is to record."""
    copies: list[dict[str, torch.Tensor]] = []
    criterion = nn.CrossEntropyLoss()
    for _, (inputs, labels) in zip(range(N_STEPS), digits(32, images=images)):  # noqa: B905
        optimizer.zero_grad()
        copied: dict[str, torch.Tensor] = {}
        outputs = inputs
        for path, layer in model.named_children():
            copied[f"{path}_input_0"] = outputs.detach().clone()
            outputs = layer(outputs)
            copied[f"{path}_output_0"] = outputs.detach().clone()
        loss = criterion(outputs, labels)
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            copied[name] = parameter.detach().clone()
            copied[f"gradient/{name}"] = parameter.grad.clone()
        for name, buffer in model.named_buffers():
            copied[f"buffer/{name}"] = buffer.clone()
        optimizer.step()
        for name, parameter in model.named_parameters():
            after = parameter.detach().clone()
            copied[f"update/{name}"] = after - copied[name]
            momentum = optimizer.state[parameter]["momentum_buffer"]
            copied[f"optimizer/momentum_buffer/{name}"] = momentum.clone()
        root = type(model).__name__
        copied |= {
            f"{root}_input_0": inputs,
            f"{root}_output_0": outputs.detach(),
            "CrossEntropyLoss_input_0": outputs.detach(),
            "CrossEntropyLoss_input_1": labels,
            "CrossEntropyLoss_output_0": loss.detach(),
        }
        copies.append(copied)
    return copies


@pytest.mark.parametrize("images", [False, True])
def test_every_value_is_bit_equal_and_every_statistic_within_the_bound(
    run_dir: Path, images: bool
) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = cnn() if images else mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    expected = by_hand(*make(), images)
    model, optimizer = make()
    criterion = nn.CrossEntropyLoss()
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(model, criterion, optimizer, digits(32, images=images), N_STEPS)
    recorded = Recorded(run_dir)
    assert hook.counters()["internal_errors"] == 0
    scalars = {name for name in recorded.names if name.startswith("scalar/")}
    assert recorded.names - scalars == set(expected[0])
    n_compared = 0
    for name in expected[0]:
        values, rows = recorded.values(name), recorded.rows(name)
        assert sorted(values) == sorted(rows) == list(range(N_STEPS))
        for step in range(N_STEPS):
            tensor = expected[step][name]
            assert values[step].tobytes() == bits(tensor), (name, step)
            assert_statistics(rows[step], tensor)
            n_compared += 1
    assert n_compared == N_STEPS * len(expected[0])


def assert_statistics(rows: list[Any], tensor: torch.Tensor) -> None:
    """One row; each field against NumPy in float64."""
    (row,) = rows
    x = tensor.detach().double().numpy().ravel()
    assert row["count"] == x.size
    assert row["zero"] == np.count_nonzero(x == 0)
    assert row["nan"] == row["positive_infinity"] == row["negative_infinity"] == 0
    kind = np.float64 if tensor.is_floating_point() else np.int64
    assert np.uint64(row["min"]).view(kind) == x.min()
    assert np.uint64(row["max"]).view(kind) == x.max()
    assert row["abs_min"] == np.abs(x).min()
    scale = max(np.abs(x).max(), 1e-300)
    assert abs(row["mean"] - x.mean()) <= 1e-7 * scale
    np.testing.assert_allclose(row["m2"] / x.size, x.var(), rtol=1e-7, atol=1e-30)
    np.testing.assert_allclose(row["l1"], np.abs(x).sum(), rtol=1e-7)
    np.testing.assert_allclose(row["l2"], np.sqrt((x * x).sum()), rtol=1e-7)


def test_the_training_computes_what_it_computes_without_a_hook(run_dir: Path) -> None:
    def run(hooked: bool) -> tuple[list[float], bytes]:
        model = cnn()
        optimizer = torch.optim.Adam(model.parameters())
        criterion = nn.CrossEntropyLoss()
        if hooked:
            hook = make_hook(run_dir)
            hook.register_module(model)
            hook.register_loss(criterion)
        losses = train(model, criterion, optimizer, digits(16, images=True), 5)
        if hooked:
            hook.close()
        return losses, b"".join(bits(p) for p in model.parameters())

    assert run(True) == run(False)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_every_element_type_is_recorded(run_dir: Path, dtype: torch.dtype) -> None:
    tensor = torch.linspace(0, 3, 50).reshape(5, 10).to(dtype)
    with make_hook(run_dir) as hook:
        hook.save_tensor("t", tensor)
    recorded = Recorded(run_dir)
    assert recorded.by_name["t"].dtype == str(dtype).removeprefix("torch.")
    assert recorded.values("t")[0].tobytes() == bits(tensor)
    assert len(recorded.rows("t")[0]) == 1


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(24.0).reshape(4, 6).T,
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.ones(1).expand(3, 4),
        torch.arange(24.0)[5:],
        torch.empty(0, 3),
        torch.tensor(2.5),
    ],
)
def test_any_layout_is_recorded_in_c_order(run_dir: Path, view: torch.Tensor) -> None:
    with make_hook(run_dir) as hook:
        hook.save_tensor("t", view)
    recorded = Recorded(run_dir)
    assert recorded.by_name["t"].shape == tuple(view.shape)
    assert recorded.values("t")[0].tobytes() == bits(view)
    assert recorded.rows("t")[0][0]["count"] == view.numel()


def test_bfloat16_autocast_is_recorded_as_it_is(run_dir: Path) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = next(digits(16))
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
    recorded = Recorded(run_dir)
    assert recorded.by_name["fc1_output_0"].dtype == "bfloat16"
    assert recorded.by_name["gradient/fc1.weight"].dtype == "float32"
    assert hook.counters()["refused_tensors"] == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, 3, dtype=torch.int64).to_sparse(),
        torch.empty(3, device="meta"),
        torch.view_as_complex(torch.ones(3, 2)).conj().imag,
    ],
)
def test_what_cannot_be_captured_is_refused_and_counted(
    run_dir: Path, tensor: torch.Tensor
) -> None:
    with make_hook(run_dir) as hook:
        hook.save_tensor("t", tensor)
    counters = hook.counters()
    assert counters["refused_tensors"] == counters["dropped"] == 1
    assert counters["internal_errors"] == 0
    assert counters["offered"] == counters["written"] + counters["dropped"]


def strange_tensors() -> list[torch.Tensor]:
    with FakeTensorMode():
        fake = torch.ones(3)
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    nested = [
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        for layout in (torch.strided, torch.jagged)
    ]
    return [fake, freed, *nested, torch.ones(3).to_mkldnn()]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_only_looks_like_a_tensor_is_refused(run_dir: Path) -> None:
    tensors = strange_tensors()
    with make_hook(run_dir) as hook:
        for number, tensor in enumerate(tensors):
            hook.save_tensor(f"t{number}", tensor)
    assert hook.counters()["refused_tensors"] == len(tensors)
    assert hook.counters()["internal_errors"] == 0


def test_a_plain_subclass_is_captured(run_dir: Path) -> None:
    class Named(torch.Tensor):
        pass

    with make_hook(run_dir) as hook:
        hook.save_tensor("t", torch.ones(3).as_subclass(Named))
    assert Recorded(run_dir).values("t")[0].tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_are_refused(run_dir: Path) -> None:
    with make_hook(run_dir) as hook:
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
        hook.save_tensor("t", quantized)
    assert hook.counters()["refused_tensors"] == 1


def test_values_given_by_hand_are_copied_at_the_call(run_dir: Path) -> None:
    tensor = torch.arange(5.0)
    with make_hook(run_dir) as hook:
        hook.save_tensor("t", tensor)
        tensor.zero_()
    assert Recorded(run_dir).values("t")[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_arrays_and_numbers_are_recorded_too(run_dir: Path) -> None:
    with make_hook(run_dir) as hook:
        hook.save_tensor("array", np.arange(6.0).reshape(2, 3).T)
        hook.save_tensor("list", [1, 2, 3])
        hook.save_tensor("dates", np.array(["2026-01-01"], dtype="M8[D]"))
        hook.save_tensor("object", object())
    recorded = Recorded(run_dir)
    assert recorded.values("array")[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert recorded.values("list")[0].tolist() == [1, 2, 3]
    assert str(recorded.values("dates")[0][0]) == "2026-01-01"
    assert hook.counters()["dropped"] == 2  # The object, and statistics of dates.


def test_a_tensor_saved_into_several_collections_is_in_all(run_dir: Path) -> None:
    with make_hook(run_dir, include_collections=[]) as hook:
        hook.save_tensor("t", torch.ones(2), ["c1", "c2"])
    recorded = Recorded(run_dir)
    for name in ("c1", "c2"):
        assert recorded.collections[name]["tensor_names"] == ["t"]
    assert list(recorded.values("t")) == [0]


def test_scalars_are_recorded_at_every_step_whatever_the_schedules(
    run_dir: Path,
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(8)
    with make_hook(run_dir, include_collections=[], save_config=None) as hook:
        hook.register_module(model)
        for number in range(5):
            train(model, criterion, optimizer, batches, 1)
            hook.save_scalar("after", torch.tensor(number * 1.0, requires_grad=True))
            hook.save_scalar("bad", torch.ones(2))
            hook.save_scalar("bad", "text")
    recorded = Recorded(run_dir)
    assert recorded.scalars("scalar/after") == [(n, float(n)) for n in range(5)]
    # Though nothing else was captured in them, and they had ended.
    assert [step[:3] for step in recorded.steps] == [(n, 1, n) for n in range(5)]
    assert "scalar/bad" not in recorded.names
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 10


def test_functional_losses_are_recorded_at_every_step(run_dir: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with make_hook(run_dir, include_collections=[], save_config=None) as hook:
        hook.register_module(model)
        wrapped = hook.register_loss(functional.cross_entropy)
        assert hook.register_loss(wrapped) is wrapped
        for _, (inputs, labels) in zip(range(3), digits(8)):  # noqa: B905
            optimizer.zero_grad()
            outputs = model(inputs)
            hook.record_tensor_value(
                "nll_loss", functional.cross_entropy(outputs, labels)
            )
            loss = wrapped(outputs, labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    recorded = Recorded(run_dir)
    for name in ("nll_loss_output_0", "cross_entropy_output_0"):
        values = recorded.values(name)
        assert [float(values[step]) for step in range(3)] == losses


def test_a_loss_of_many_numbers_has_its_statistics_at_every_step(
    run_dir: Path,
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=[], save_config=None) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        train(
            model,
            lambda *given: criterion(*given).sum().reshape(()),
            optimizer,
            digits(8),
            3,
        )
    recorded = Recorded(run_dir)
    assert sorted(recorded.rows("CrossEntropyLoss_output_0")) == [0, 1, 2]
    assert list(recorded.values("CrossEntropyLoss_output_0")) == [0]
