"""Models that change while they are trained: what comes, goes or moves is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tdbg.hooks.pytorch.model.module_tree import SEARCH_INTERVAL
from tdbg.pytorch import Hook, SaveConfig
from torch_helpers import Recorded, make_hook

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """Calls whatever parts it has, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in list(self.children()):
            x = part(x)
        return x


class LowRank(nn.Module):
    """Wraps a layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result


class Steps:
    """Trains a model whose parameters change."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.model = Net()
        self.hook: Hook = make_hook(run_dir, **options)
        self.hook.register_module(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def take(self, n: int = 1) -> None:
        for _ in range(n):
            self.optimizer.zero_grad()
            self.model(torch.ones(3, 4)).sum().backward()
            self.optimizer.step()


def steps_of(run_dir: Path, *names: str) -> list[list[int]]:
    recorded = Recorded(run_dir)
    return [sorted(recorded.rows(name)) for name in names]


def test_a_module_that_is_added_is_captured_from_the_next_forward_on(
    run_dir: Path,
) -> None:
    """Sabotaged: without the global hook it is found in step 99."""
    training = Steps(run_dir)
    training.take(2)
    training.model.norm = nn.BatchNorm1d(4)
    training.model.add_module("head", nn.Sequential(nn.Linear(4, 2)))
    training.optimizer.add_param_group({"params": training.model.norm.parameters()})
    training.take(2)
    head = training.model.head
    assert isinstance(head, nn.Sequential)
    head.append(nn.Tanh())
    training.take()
    training.hook.close()
    assert training.hook.counters()["internal_errors"] == 0
    assert steps_of(
        run_dir,
        "fc_output_0",
        "norm_input_0",
        "norm.weight",
        "gradient/norm.weight",
        "buffer/norm.running_mean",
        "head.0_output_0",
        "head.0.weight",
        "head.1_output_0",
    ) == [
        [0, 1, 2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
        [4],
    ]


def test_a_layer_that_is_wrapped_by_another_has_its_new_name(run_dir: Path) -> None:
    """Sabotaged: without new names for what moved, fc_output_0 comes twice."""
    training = Steps(run_dir)
    training.take()
    training.model.fc = LowRank(training.model.fc)  # type: ignore[assignment]
    training.take(2)
    training.hook.close()
    recorded = Recorded(run_dir)
    for name in ("fc_output_0", "fc_input_0", "fc.base_output_0", "fc.up_output_0"):
        assert all(len(rows) == 1 for rows in recorded.rows(name).values()), name
    wrapped = {*steps_of(run_dir, "fc.base_output_0")[0]}
    assert wrapped == {1, 2}
    assert steps_of(
        run_dir, "fc_output_0", "fc.weight", "fc.base.weight", "fc.up.weight"
    ) == [[0, 1, 2], [0], [1, 2], [1, 2]]
    # Nothing of the old name is left of what was captured inside.
    base = recorded.values("fc.base_output_0")[1]
    assert recorded.values("fc_output_0")[1].tobytes() != base.tobytes()


def test_a_replaced_layer_goes_on_under_its_name(run_dir: Path) -> None:
    training = Steps(run_dir)
    old = training.model.fc
    training.take()
    training.model.fc = nn.Linear(4, 4)
    training.take()
    old(torch.ones(1, 4))
    training.take()
    training.hook.close()
    recorded = Recorded(run_dir)
    assert steps_of(run_dir, "fc_output_0", "fc.weight") == [[0, 1, 2], [0, 1, 2]]
    assert {len(rows) for rows in recorded.rows("fc_output_0").values()} == {1}
    assert not old._forward_hooks
    assert not old._forward_pre_hooks


def test_what_pytorch_does_not_tell_is_found_within_a_hundred_captures(
    run_dir: Path,
) -> None:
    training = Steps(run_dir)
    removed = nn.Linear(4, 4)
    training.model.removed = removed
    training.take()
    del training.model.removed
    training.model._modules["added"] = nn.Linear(4, 4)
    training.model.fc.register_parameter("late", nn.Parameter(torch.ones(1)))
    training.take(SEARCH_INTERVAL)
    training.hook.close()
    found = steps_of(run_dir, "added_output_0", "added.weight", "fc.late")
    assert all(0 < steps[0] <= SEARCH_INTERVAL for steps in found)
    assert not removed._forward_hooks


def test_a_module_that_is_added_while_hooks_are_off_gets_none_until_they_are_on(
    run_dir: Path,
) -> None:
    every_fourth = SaveConfig(statistics_interval=4, save_interval=4)
    training = Steps(run_dir, save_config=every_fourth)
    training.take(2)
    training.model.late = nn.Linear(4, 4)
    training.take()
    assert not training.model.late._forward_hooks
    assert not training.model.fc._forward_hooks
    training.take(2)
    training.hook.close()
    assert steps_of(run_dir, "late_output_0", "fc_output_0") == [[4], [0, 4]]


def test_a_module_inside_a_registered_one_can_be_registered_too(run_dir: Path) -> None:
    every_other = SaveConfig(statistics_interval=2, save_interval=2)
    training = Steps(run_dir, save_config=every_other)
    hook, inner = training.hook, training.model.fc
    hook.register_module(inner)
    hook.register_module(inner)
    training.take(3)
    hook.close()
    recorded = Recorded(run_dir)
    # It is part of the call around it, and has both names.
    assert [step[:3] for step in recorded.steps] == [(0, 1, 0), (2, 1, 2)]
    for name in ("fc", "Linear"):
        rows = recorded.rows(f"{name}_output_0")
        assert {step: len(found) for step, found in rows.items()} == {0: 1, 2: 1}
    weights = recorded.values("fc.weight"), recorded.values("Linear.weight")
    assert weights[0][2].tobytes() == weights[1][2].tobytes()


def test_the_hook_of_all_modules_of_the_process_goes(run_dir: Path) -> None:
    hooks = torch_module._global_module_registration_hooks
    before = len(hooks)
    training = Steps(run_dir)
    assert len(hooks) == before + 1
    training.hook.close()
    assert len(hooks) == before


@pytest.mark.filterwarnings("ignore")  # That all of it is deprecated.
def test_a_dynamically_quantized_model_is_captured_where_it_is_float(
    run_dir: Path,
) -> None:
    kind = torch.ao.nn.quantized.dynamic.Linear
    engines = [
        name for name in torch.backends.quantized.supported_engines if name != "none"
    ]
    if not engines:
        pytest.skip("this PyTorch has no quantized operators")
    torch.backends.quantized.engine = engines[-1]
    layer = nn.Linear(4, 2)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    hook = make_hook(run_dir)
    hook.register_module(model)
    with torch.no_grad():
        model(torch.ones(1, 4))
        layer.qconfig = torch.ao.quantization.default_dynamic_qconfig
        model.append(kind.from_float(layer))
        answer = model(torch.ones(1, 4))
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    found = Recorded(run_dir).values("2_output_0")[1]
    assert found.tobytes() == answer.numpy().tobytes()
