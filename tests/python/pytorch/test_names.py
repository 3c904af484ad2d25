"""What tensors are called, and which collections they are in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.capture.naming import Naming
from tdbg.capture.opening import SessionSpec
from tdbg.capture.policy import Policy
from tdbg.config import CollectionRegistry
from tdbg.config.options import SessionOptions
from tdbg.pytorch import Collection, Hook, SaveConfig, watch
from torch_helpers import EVERYTHING, Recorded, custom, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    hidden: Any = None


class Structured(nn.Module):
    """Takes and returns what is not a plain tensor."""

    def forward(
        self, x: torch.Tensor, pair: Any = None, *, mask: torch.Tensor | None = None
    ) -> Any:
        shift = 0 if mask is None else mask.sum()
        first = x + pair["a"][0] if pair else x
        return {"answer": Answer(first + shift, [x]), "none": None, "n": 3}


def record(run_dir: Path, module: nn.Module, *calls: Any, **options: Any) -> Recorded:
    with make_hook(run_dir, **options) as hook:
        hook.register_module(module)
        for args, kwargs in calls:
            module(*args, **kwargs)
    assert hook.counters()["internal_errors"] == 0
    return Recorded(run_dir)


def test_nested_inputs_and_outputs_are_counted_depth_first(run_dir: Path) -> None:
    x, a, mask = torch.ones(2), torch.full((2,), 5.0), torch.full((1,), 7.0)
    recorded = record(run_dir, Structured(), ((x, {"a": (a, None)}), {"mask": mask}))
    assert recorded.names == {
        "Structured_input_0",
        "Structured_input_1",
        "Structured_input_2",
        "Structured_output_0",
        "Structured_output_1",
    }
    assert recorded.values("Structured_input_1")[0].tolist() == [5, 5]
    assert recorded.values("Structured_input_2")[0].tolist() == [7]
    assert recorded.values("Structured_output_0")[0].tolist() == [13, 13]


def test_a_second_call_in_a_forward_has_a_name_of_its_own(run_dir: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.relu(self.relu(x) - 1)
            return result

    recorded = record(run_dir, Twice(), ((torch.ones(2),), {}))
    assert recorded.values("relu_output_0")[0].tolist() == [1, 1]
    assert recorded.values("relu_output_0@2")[0].tolist() == [0, 0]
    assert recorded.values("relu_input_0@2")[0].tolist() == [0, 0]


def test_a_module_called_without_end_has_names_for_its_first_calls(
    run_dir: Path,
) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(200):
                x = self.cell(x)
            return x

    recorded = record(run_dir, Loop(), ((torch.ones(2),), {}))
    assert "cell_output_0@64" in recorded.names
    assert len(recorded.names) == 2 * 64 + 2
    assert [int(row["dropped"]) for row in recorded.step_table] == [0]


def test_a_compiled_model_trains_as_before_and_its_parameters_are_recorded(
    run_dir: Path,
) -> None:
    def run(hooked: bool) -> list[float]:
        model, criterion = mlp(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hooked:
            hook = make_hook(run_dir)
            hook.register_module(model)
        compiled: Any = torch.compile(model, backend="eager")
        losses = train(compiled, criterion, optimizer, digits(8), 2)
        if hooked:
            hook.close()
            assert hook.counters()["internal_errors"] == 0
        return losses

    assert run(True) == run(False)
    recorded = Recorded(run_dir)
    assert [step[:3] for step in recorded.steps] == [(0, 1, 0), (1, 1, 1)]
    assert {"fc1.weight", "gradient/fc1.weight"} <= recorded.names


def test_a_tied_parameter_is_one_tensor_with_aliases(run_dir: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.embedding(x))
            return result

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(torch.tensor([1])).sum().backward()
        optimizer.step()
    recorded = Recorded(run_dir)
    assert recorded.by_name["embedding.weight"].aliases == ("head.weight",)
    gradient = recorded.by_name["gradient/embedding.weight"]
    assert gradient.aliases == ("gradient/head.weight",)
    assert "head.weight" not in recorded.names
    assert len(recorded.rows("embedding.weight")[0]) == 1


def test_a_shared_module_is_known_by_all_its_paths(run_dir: Path) -> None:
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(2, 2), relu)
    recorded = record(run_dir, model, ((torch.ones(1, 2),), {}))
    assert recorded.by_name["0_output_0"].aliases == ("2_output_0",)
    assert recorded.by_name["0_output_0@2"].aliases == ("2_output_0@2",)


def test_losses_of_one_class_are_told_apart(run_dir: Path) -> None:
    losses = [nn.MSELoss() for _ in range(3)]
    with make_hook(run_dir) as hook:
        for loss, name in zip(losses, (None, None, "own"), strict=True):
            hook.register_loss(loss, name=name)
            hook.register_loss(loss)
        for loss in losses:
            loss(torch.ones(2), torch.zeros(2))
    assert {name for name in Recorded(run_dir).names if "output" in name} == {
        "MSELoss_output_0",
        "MSELoss_2_output_0",
        "own_output_0",
    }


def test_any_callable_is_a_loss(run_dir: Path) -> None:
    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    class Plain:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

    with make_hook(run_dir, include_collections=[]) as hook:
        hook.register_loss(Custom())(torch.ones(3))
        plain = hook.register_loss(Plain())
        assert plain(torch.ones(3)) == 1
    recorded = Recorded(run_dir)
    assert recorded.names == {"Custom_output_0", "Plain_output_0"}
    assert recorded.collections["losses"]["tensor_names"] == sorted(recorded.names)


def test_two_modules_of_one_hook_share_no_names(run_dir: Path) -> None:
    first, second, third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    with make_hook(run_dir, include_collections=["weights", "outputs"]) as hook:
        hook.register_module(first)
        hook.register_module(second)
        hook.register_module(third, name="critic")
        for module in (first, second, third):
            module(torch.ones(1, 2))
    assert Recorded(run_dir).names == {
        "weight",
        "Linear_output_0",
        "Linear_2.weight",
        "Linear_2_output_0",
        "critic.weight",
        "critic_output_0",
    }


def test_an_in_place_operation_does_not_change_what_was_recorded_before(
    run_dir: Path,
) -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    recorded = record(run_dir, model, ((torch.tensor([-1.0, 2.0]),), {}))
    for name in ("Sequential_input_0", "0_output_0", "1_input_0"):
        assert recorded.values(name)[0].tolist() == [-1, 2]
    assert recorded.values("1_output_0")[0].tolist() == [0, 2]


def test_only_losses_are_recorded_unless_told_otherwise(run_dir: Path) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    with Hook(run_dir, min_free_bytes=0) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, criterion, optimizer, digits(8), 12)
    recorded = Recorded(run_dir)
    assert recorded.names == {"CrossEntropyLoss_output_0"}
    assert len(recorded.values("CrossEntropyLoss_output_0")) == 12


def test_include_regex_and_custom_collections_find_tensors_by_name(
    run_dir: Path,
) -> None:
    options: dict[str, Any] = {
        "include_regex": ["relu_out"],
        "collections": custom(r"^gradient/fc2\.w"),
    }
    model = mlp()
    with make_hook(run_dir, **options) as hook:
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, nn.CrossEntropyLoss(), optimizer, digits(8), 1)
    recorded = Recorded(run_dir)
    assert recorded.names == {"relu_output_0", "gradient/fc2.weight"}
    assert recorded.collections["custom"]["captured"]
    assert recorded.collections["custom"]["tensor_names"] == ["gradient/fc2.weight"]
    assert recorded.collections["default"]["tensor_names"] == ["relu_output_0"]


def test_a_collection_changed_while_training_holds_from_the_next_step(
    run_dir: Path,
) -> None:
    model, batches = mlp(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    with make_hook(run_dir, include_collections=["weights"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, batches, 1)
        hook.get_collection("weights").save_config = SaveConfig(end_step=0)
        hook.add_collection(Collection("relus", "relu_output"))
        train(model, criterion, optimizer, batches, 2)
    recorded = Recorded(run_dir)
    assert sorted(recorded.values("fc1.weight")) == [0]
    assert sorted(recorded.values("relu_output_0")) == [1, 2]


def test_watch_takes_statistics_and_values_only_of_what_rules_need(
    run_dir: Path,
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = watch(model, criterion, optimizer, run_dir, min_free_bytes=0)
    train(model, criterion, optimizer, digits(8), 71)
    hook.close()
    recorded = Recorded(run_dir)
    # Every step of the beginning, and then as the hook does.
    assert sorted(recorded.rows("gradient/fc1.weight")) == [*range(50), 50, 60, 70]
    assert sorted(recorded.rows("relu_output_0")) == [*range(50), 50, 60, 70]
    assert len(recorded.values("CrossEntropyLoss_output_0")) == 71
    units = recorded.values("unit/relu_output_0")
    assert units[0].shape == (3, 24)
    assert units[0][2].tolist() == [8] * 24
    raw = {name for name in recorded.names if recorded.values(name)}
    units, loss = "unit/relu_output_0", "CrossEntropyLoss_output_0"
    given = {"Net_input_0", "CrossEntropyLoss_input_0", "CrossEntropyLoss_input_1"}
    # Of weights and gradients those of the first step, by which an initialization is
    # judged.
    weights = {"fc1.weight", "fc2.weight"}
    first = {f"gradient/{name}" for name in dict(model.named_parameters())} | weights
    assert {units, loss} <= raw <= {units, loss, *given, *first}
    assert all(sorted(recorded.values(name)) == [0] for name in first & raw)


def test_unit_summaries_count_what_is_active(run_dir: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    inputs = torch.randn(5, 1, 6, 6)
    recorded = record(
        run_dir, model, ((inputs,), {}), rules=["DeadRelu"], include_collections=[]
    )
    counts = recorded.values("unit/1_output_0")[0]
    output = model(inputs)
    assert counts[0].tolist() == (output > 0).sum(dim=(0, 2, 3)).tolist()
    assert counts[2].tolist() == [5 * 16] * 4
    assert recorded.rows("1_output_0") == {}


# ---- a scheme of names of another library ----------------------------------------


class Foreign(Naming):
    """Prefixes parameters, and lets the index run."""

    name = "foreign"
    index_runs = True

    def before_parameters(self, root: str, prefix: str) -> str:
        return f"{root}_{prefix}"


class ForeignHook(Hook):
    """A hook of a face with names of its own."""

    def __init__(self, run_dir: Path) -> None:
        policy = Policy(CollectionRegistry(["all"]), EVERYTHING, naming=Foreign())
        options = SessionOptions(min_free_bytes=0)
        self._open(lambda _: (SessionSpec(run_dir, policy, options), None))


class Twice(nn.Module):
    """Calls one module three times: with one tensor, two, and one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.pick = Pick()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        first: torch.Tensor = self.pick(y)
        second, third = self.pick(first + 1, first + 2)
        result: torch.Tensor = self.pick(second + third)
        return result


class Pick(nn.Module):
    """Answers what it is given."""

    def forward(self, *tensors: torch.Tensor) -> object:
        return tensors[0] if len(tensors) == 1 else tensors


def train_once(run_dir: Path, model: nn.Module, *others: nn.Module) -> Recorded:
    hook = ForeignHook(run_dir)
    hook.register_module(model)
    for other in others:
        hook.register_module(other)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        for other in others:
            loss = loss + other(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    hook.close()
    return Recorded(run_dir)


def test_parameters_and_gradients_have_the_names_of_the_scheme(run_dir: Path) -> None:
    found = train_once(run_dir, Twice())
    assert {"Twice_fc.weight", "Twice_fc.bias"} <= found.names
    assert {"gradient/Twice_fc.weight", "gradient/Twice_fc.bias"} <= found.names
    assert not any(name.startswith("fc.") for name in found.names)
    assert found.events(1)[0]["hook"]["naming"] == "foreign"


def test_a_second_root_keeps_its_own_prefix(run_dir: Path) -> None:
    found = train_once(run_dir, Twice(), Twice())
    assert {"Twice_fc.weight", "Twice_2_Twice_2.fc.weight"} <= found.names


def test_an_index_runs_over_the_calls_of_a_forward(run_dir: Path) -> None:
    found = train_once(run_dir, Twice())
    assert not any("@" in name for name in found.names)
    for direction in ("input", "output"):
        names = {name for name in found.names if f"pick_{direction}" in name}
        assert names == {f"pick_{direction}_{i}" for i in range(4)}
    # Of the plain calls the first goes another way than the others: the same names
    # must hold the same tensors in every step.
    for step in range(3):
        outputs = [found.values(f"pick_output_{i}")[step] for i in range(4)]
        assert torch.tensor(outputs[1]).equal(torch.tensor(outputs[0]) + 1)
        assert torch.tensor(outputs[2]).equal(torch.tensor(outputs[0]) + 2)
        assert torch.tensor(outputs[3]).equal(
            torch.tensor(outputs[1]) + torch.tensor(outputs[2])
        )
