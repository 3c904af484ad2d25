"""DataParallel: one process that calls copies of a model."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tdbg.trial import create_trial
from torch_helpers import digits, make_hook, mlp, parts, train


@pytest.mark.parametrize("first", [True, False])
def test_data_parallel_without_devices_is_the_model_itself(
    run_dir: Path, first: bool
) -> None:
    model, criterion, optimizer, batches = parts()
    wrapped = nn.DataParallel(model)
    with make_hook(run_dir) as hook:
        hook.register_module(model if first else wrapped)
        hook.register_loss(criterion)
        train(wrapped, criterion, optimizer, batches, 2)
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1]
    assert trial.tensor("fc1_output_0").stats(0).count == 16 * 24
    assert trial.tensor("gradient/fc1.weight").stats(1).count == 24 * 64
    assert not any("module" in name for name in trial.tensor_names())


def copies(model: nn.Module) -> list[nn.Module]:
    """Copies on two devices, as DataParallel makes them; the second has no memory."""
    found = []
    for device in ("cpu", "meta"):
        of_module = {
            each: each._replicate_for_data_parallel() for each in model.modules()
        }
        for each, copy in of_module.items():
            for name, child in each._modules.items():
                assert child is not None
                copy._modules[name] = of_module[child]
            for name, parameter in each._parameters.items():
                assert parameter is not None
                given = parameter if device == "cpu" else parameter.to("meta")
                setattr(copy, name, given.view_as(given))
        found.append(of_module[model])
    return found


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(30)


def test_copies_of_the_model_are_one_forward(run_dir: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        for (inputs, labels), _ in zip(digits(8), range(3), strict=False):
            optimizer.zero_grad()
            outputs: list[torch.Tensor] = [torch.empty(0)] * 2

            def call(
                index: int,
                copy: nn.Module,
                given: torch.Tensor,
                outputs: list[torch.Tensor] = outputs,
            ) -> None:
                outputs[index] = copy(given)

            # Both are inside at once, as they are on devices.
            both = threading.Barrier(2)
            meeting = model.relu.register_forward_hook(lambda *_, b=both: _meet(b))
            pair = copies(model)
            shares = (inputs[:4], inputs[4:].to("meta"))
            threads = [
                threading.Thread(target=call, args=(i, pair[i], shares[i]))
                for i in (1, 0)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            meeting.remove()
            nn.functional.cross_entropy(outputs[0], labels[:4]).backward()
            optimizer.step()
        counters = hook.counters()
    assert (counters["refused_tensors"], counters["internal_errors"]) == (0, 0)
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2]
    table = trial.step_table()
    assert table["micro_batches"].tolist() == [1, 1, 1]
    assert trial.tensor("gradient/fc1.weight").steps() == [0, 1, 2]
    assert "fc1_output_0" not in trial.tensor_names(), "whose would it be?"
    # What is called by itself again is captured as ever.
    with make_hook(run_dir.parent / "after") as hook:
        hook.register_module(model)
        model(torch.zeros(1, 64))
    after = create_trial(run_dir.parent / "after")
    assert after.tensor("fc1_output_0").stats(0).count == 24
