"""Trainings on a device: right rows, no synchronization, no error that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_helpers import (
    EVERYTHING,
    Rows,
    assert_nothing_lost,
    assert_path,
    assert_row,
    make_hook,
)
from torch import nn

from dtype_helpers import numpy_of

EVERY = ["weights", "biases", "gradients", "outputs", "losses"]


def parts(device: str) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Linear(256, 64), nn.Tanh()
    ).to(device)
    return model, nn.MSELoss(), torch.optim.AdamW(model.parameters(), lr=1e-3)


def snapshot(model: nn.Module, kept: list[dict[str, Any]]) -> Any:
    """Notes weights and gradients as an optimizer is about to use them."""

    def look(*_: Any) -> None:
        found = {name: numpy_of(p) for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            found[f"gradient/{name}"] = numpy_of(p.grad)
        kept.append(found)

    return look


def test_rows_and_values_are_those_of_their_step(
    tmp_path: Path, device: str, takes_kernels: bool
) -> None:
    model, criterion, optimizer = parts(device)
    kept: list[dict[str, Any]] = []
    inputs = torch.randn(32, 64, device=device)
    with make_hook(tmp_path, include_collections=EVERY, save_config=EVERYTHING) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        optimizer.register_step_pre_hook(snapshot(model, kept))
        for _ in range(6):
            optimizer.zero_grad()
            criterion(model(inputs), inputs).backward()
            optimizer.step()
        hook.flush()
        assert_nothing_lost(hook)
        assert_path(hook, takes_kernels, device)
    rows = Rows(tmp_path)
    for step, found in enumerate(kept):
        for name, array in found.items():
            assert_row(rows.of(name)[step], array, f"{name} of step {step}")
            assert np.array_equal(rows.values(name)[step], array), name


def test_nothing_synchronizes(tmp_path: Path, cuda: str) -> None:
    model, criterion, optimizer = parts(cuda)
    inputs = torch.randn(32, 64, device=cuda)
    with make_hook(tmp_path, include_collections=EVERY, save_config=EVERYTHING) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for number in range(8):
            if number == 2:  # By then all memory has been allocated.
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            criterion(model(inputs), inputs).backward()
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
        hook.flush()
        assert_nothing_lost(hook)
    assert len(Rows(tmp_path).of("0.weight")) == 8


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler(fused: bool, tmp_path: Path, cuda: str) -> None:
    model, criterion, _ = parts(cuda)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    inputs = torch.randn(32, 64, device=cuda)
    with make_hook(tmp_path, include_collections=EVERY) as hook:
        hook.register_module(model)
        for number in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = criterion(model(inputs), inputs)
            if number == 3:
                loss = loss * float("nan")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        hook.flush()
    rows = Rows(tmp_path)
    flags = [int(each["flags"]) & 1 for each in rows.steps]
    assert flags[3] == 1, "the step that the scaler skipped"
    assert int(rows.of("gradient/0.weight")[3]["nan"]) > 0


def test_memory_that_is_used_again_at_once(tmp_path: Path, cuda: str) -> None:
    n, size = 400, 1 << 18
    with make_hook(tmp_path) as hook:
        for i in range(n):
            tensor = torch.full((size,), float(i), device=cuda)
            hook.save_tensor(f"t{i}", tensor)
            del tensor  # The next one gets its memory.
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for i in range(n):
        row = rows.of(f"t{i}")[0]
        assert float(row["mean"]) == i
        assert float(row["m2"]) == 0.0


def test_raw_values_whose_memory_is_used_again(tmp_path: Path, cuda: str) -> None:
    n, size = 60, 1 << 20
    with make_hook(tmp_path, save_config=EVERYTHING, queue_bytes=1 << 30) as hook:
        for i in range(n):
            tensor = torch.full((size,), float(i), device=cuda)
            hook.save_tensor(f"t{i}", tensor)
            del tensor
            torch.full((size,), -1.0, device=cuda)
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for i in range(n):
        assert bool((rows.values(f"t{i}")[0] == i).all()), i


def test_a_weight_is_copied_before_the_optimizer_changes_it(
    tmp_path: Path, cuda: str
) -> None:
    model = nn.Linear(2048, 2048, bias=False, device=cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_hook(
        tmp_path,
        include_collections=["weights", "gradients"],
        save_config=EVERYTHING,
        queue_bytes=1 << 30,
    ) as hook:
        hook.register_module(model)
        expected = []
        for step in range(8):
            with torch.no_grad():
                model.weight.fill_(float(step))
            model(torch.ones(1, 2048, device=cuda)).sum().backward()
            optimizer.step()  # Subtracts one from every weight.
            expected.append(float(step))
            optimizer.zero_grad(set_to_none=False)  # In place: gradients too.
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for step, value in enumerate(expected):
        assert bool((rows.values("weight")[step] == value).all()), step
        assert bool((rows.values("gradient/weight")[step] == 1.0).all()), step


def test_several_streams(tmp_path: Path, cuda: str) -> None:
    streams = [torch.cuda.Stream() for _ in range(12)]
    with make_hook(tmp_path) as hook:
        for number in range(5):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    tensor = torch.full((1 << 20,), 1.0, device=cuda)
                    tensor += float(10 * i + number)
                    hook.save_tensor(f"{number}/{i}", tensor)
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for number in range(5):
        for i in range(len(streams)):
            assert float(rows.of(f"{number}/{i}")[0]["mean"]) == 1.0 + 10 * i + number


def test_two_devices(tmp_path: Path, cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    with make_hook(tmp_path, save_config=EVERYTHING) as hook:
        for index in range(2):
            tensor = torch.full((1000,), float(index), device=f"{cuda}:{index}")
            hook.save_tensor(f"on {index}", tensor)
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for index in range(2):
        assert float(rows.of(f"on {index}")[0]["mean"]) == index
        assert bool((rows.values(f"on {index}")[0] == index).all())
