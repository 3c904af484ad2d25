"""Gradients of what modules return: the right ones, once, and nothing left behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tdbg import create_trial
from tdbg.pytorch import Hook, ModeKeys, SaveConfig
from torch_helpers import Recorded, cnn, custom, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch

ONLY = ["output_gradients"]


def values(run_dir: Path) -> dict[str, np.ndarray[Any, Any]]:
    """What was recorded of the first step, by the module's path."""
    recorded = Recorded(run_dir)
    found = {}
    for name in recorded.names:
        if name.startswith("gradient/"):
            path = name.removeprefix("gradient/").replace("_output_0", "")
            found[path] = recorded.values(name)[0]
    return found


def expected(
    model: nn.Module, run: Callable[[nn.Module], None]
) -> dict[str, np.ndarray[Any, Any]]:
    """The same from PyTorch: of the last call of each module."""
    outputs: dict[str, torch.Tensor] = {}
    handles = []
    for path, module in model.named_modules():

        def keep(
            _: Any, __: Any, output: torch.Tensor, name: str = path or "Net"
        ) -> None:
            output.retain_grad()
            outputs[name] = output

        handles.append(module.register_forward_hook(keep))
    run(model)
    for handle in handles:
        handle.remove()
    return {
        name: each.grad.numpy()
        for name, each in outputs.items()
        if each.grad is not None
    }


def test_gradients_of_outputs_are_those_of_pytorch(run_dir: Path) -> None:
    inputs, labels = next(digits(8))

    def run(model: nn.Module) -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()

    model = mlp()
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        run(model)
    assert hook.counters()["internal_errors"] == hook.counters()["dropped"] == 0
    ours, theirs = values(run_dir), expected(model, run)
    assert set(ours) == set(theirs) == {"Net", "fc1", "relu", "fc2"}
    for name, value in theirs.items():
        assert ours[name].tobytes() == value.tobytes(), name
    tensor = create_trial(run_dir).tensor("gradient/relu_output_0")
    assert tensor.role == "output_gradient"
    assert tensor.reduction_value(0, "l2") == pytest.approx(
        float(np.linalg.norm(theirs["relu"])), rel=1e-6
    )


def test_in_place_operations_afterwards_change_nothing(run_dir: Path) -> None:
    """The gradient is that of the output as the module returned it.

    Sabotaged: hooked after the next module, fc has the gradient behind the ReLU.
    """

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2, bias=False)
            self.part = nn.Flatten()  # Returns a view.
            self.relu = nn.ReLU(inplace=True)
            with torch.no_grad():
                self.fc.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.relu(self.part(self.fc(x))) * 2
            x += 1
            result: torch.Tensor = x.mul_(3.0)
            return result

    model = Net()
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        model(torch.ones(1, 2)).sum().backward()
    assert hook.counters()["internal_errors"] == 0
    found = {name: value.tolist() for name, value in values(run_dir).items()}
    assert found == {
        "fc": [[6, 0]],
        "part": [[6, 0]],
        "relu": [[6, 6]],
        "Net": [[1, 1]],
    }


def test_the_training_computes_what_it_computes_without_them(run_dir: Path) -> None:
    def run(hooked: bool) -> list[float]:
        model, criterion = cnn(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if hooked:
            hook = make_hook(
                run_dir, include_collections=["output_gradients", "outputs"]
            )
            hook.register_module(model)
        losses = train(model, criterion, optimizer, digits(8, images=True), 4)
        if hooked:
            hook.close()
            assert hook.counters()["internal_errors"] == 0
            assert hook.counters()["refused_tensors"] == 0
        return losses

    assert run(True) == run(False)
    # Every module's, in every step.
    recorded = Recorded(run_dir)
    for path in (*map(str, range(8)), "Sequential"):
        assert set(recorded.rows(f"gradient/{path}_output_0")) == set(range(4))


def test_each_call_and_each_tensor_has_its_own(run_dir: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"n": x.argmax(), "double": 2 * x, "rest": [x.detach(), 3 * x]}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.pair(x)
            second = self.pair(first["double"])
            result: torch.Tensor = second["double"] + 5 * second["rest"][1]
            return result

    with make_hook(run_dir, include_collections=ONLY) as hook:
        model = Net()
        hook.register_module(model)
        model(torch.ones(1, requires_grad=True)).sum().backward()
    recorded = Recorded(run_dir)
    # Indices are those of the outputs; what has no gradient is left out.
    assert {name: recorded.values(name)[0].tolist() for name in recorded.names} == {
        "gradient/Net_output_0": [1],
        "gradient/pair_output_1": [17],
        "gradient/pair_output_1@2": [1],
        "gradient/pair_output_3@2": [5],
    }
    assert hook.counters()["refused_tensors"] == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_with_checkpoints_they_are_taken_once(run_dir: Path, reentrant: bool) -> None:
    inputs, labels = next(digits(8))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.first = nn.Linear(64, 16)
            self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10))
            self.twice = nn.Sigmoid()
            self.saves_memory = True

        def forward(self, x: torch.Tensor) -> Any:
            def end(x: torch.Tensor) -> Any:
                return self.twice(self.twice(self.block(x)))

            x = self.first(x)
            if not self.saves_memory:
                return end(x)
            return checkpoint(end, x, use_reentrant=reentrant)

    def run(model: nn.Module) -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()

    model = Net()
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        run(model)
    model.saves_memory = False
    theirs = expected(model, run)
    ours = values(run_dir)
    assert hook.counters()["internal_errors"] == 0
    # Which call is computed anew, nobody says: of a module that is called twice in
    # a checkpoint of the old kind nothing is taken, and that is counted.
    assert hook.counters()["refused_tensors"] == (2 if reentrant else 0)
    last = theirs.pop("twice")
    if not reentrant:
        assert ours.pop("twice@2").tobytes() == last.tobytes()
        del ours["twice"]
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)


def test_of_several_backwards_the_first_counts(run_dir: Path) -> None:
    """Sabotaged: without ``is_done`` there are three rows."""
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        x = torch.ones(1, 2, requires_grad=True)
        y = model(x)
        (gradient,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        at_first = (3 * y.detach() ** 2).tolist()
        (gradient**2).sum().backward(retain_graph=True)
        y.sum().backward()
        optimizer.step()
    recorded = Recorded(run_dir)
    for name in ("gradient/0_output_0", "gradient/Sequential_output_0"):
        assert len(recorded.rows(name)[0]) == 1
        np.testing.assert_allclose(recorded.values(name)[0], at_first)
    assert hook.counters()["internal_errors"] == 0


def test_micro_batches_have_a_row_each_in_any_order(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        for _ in range(2):
            outputs = [model(torch.ones(1, 1)) for _ in range(3)]
            for factor, output in reversed(list(enumerate(outputs))):
                (output * factor).sum().backward()
            optimizer.step()
    recorded = Recorded(run_dir)
    for step in range(2):
        rows = recorded.rows("gradient/0_output_0")[step]
        found = {int(row["micro_batch"]): float(row["mean"]) for row in rows}
        assert found == {0: 0.0, 1: 1.0, 2: 2.0}


def test_a_saliency_map_is_taken_in_evaluation(run_dir: Path) -> None:
    model = mlp().eval()
    inputs, _ = next(digits(1))
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        model(inputs)[0, 3].backward()
        with torch.no_grad():
            model(inputs)
    assert "gradient/relu_output_0" in Recorded(run_dir).names
    trial = create_trial(run_dir)
    tensor = trial.tensor("gradient/relu_output_0")
    assert tensor.steps(mode=ModeKeys.EVAL) == [0]
    weight = model.fc2.weight[3].detach().numpy()  # type: ignore[union-attr, index]
    np.testing.assert_array_equal(tensor.value(0, mode=ModeKeys.EVAL)[0], weight)


def test_only_who_names_them_gets_them(run_dir: Path) -> None:
    """Neither everything, nor an expression that happens to match."""

    def names(path: Path, **options: Any) -> set[str]:
        model = mlp()
        with make_hook(path, **options) as hook:
            hook.register_module(model)
            model(torch.ones(1, 64)).sum().backward()
        return {
            name
            for name in Recorded(path).names
            if name.startswith("gradient/") and "output" in name
        }

    assert names(run_dir / "all") == set()
    assert names(run_dir / "regex", include_regex=".*relu|^gradient") == set()
    requested = "gradient/relu_output"
    assert names(run_dir / "named", collections=custom(requested)) == {f"{requested}_0"}
    assert (
        len(names(run_dir / "both", include_regex="x", include_collections=ONLY)) == 4
    )


def test_no_hook_and_no_tensor_is_left_behind(run_dir: Path) -> None:
    every_other = SaveConfig(statistics_interval=2, save_interval=2)
    hook = make_hook(run_dir, include_collections=ONLY, save_config=every_other)
    model = nn.Sequential(nn.Linear(64, 4), nn.Identity())
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    leaf = torch.ones(1, 64, requires_grad=True)

    def step() -> torch.Tensor:
        output: torch.Tensor = model(leaf)
        model[1](leaf)  # Returns the leaf itself, whose hooks live as long as it.
        output.sum().backward()
        optimizer.step()
        return output

    kept = [step() for _ in range(4)]
    # Those of step 0 went when step 2 began; those of step 2 go with the hook.
    assert [len(each._backward_hooks or ()) for each in kept] == [0, 0, 3, 0]
    assert len(leaf._backward_hooks or ()) == 1
    hook.close()
    assert [len(each._backward_hooks or ()) for each in (*kept, leaf)] == [0] * 5
    assert set(Recorded(run_dir).rows("gradient/0_output_0")) == {0, 2}


def test_an_output_dies_without_the_garbage_collector(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 4))
    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        gc.disable()
        try:
            output = model(torch.ones(1, 64))
            output.sum().backward()
            dies = weakref.ref(output)
            del output
            assert dies() is None
        finally:
            gc.enable()


def test_between_its_steps_modules_have_no_hooks(run_dir: Path) -> None:
    every_third = SaveConfig(statistics_interval=3)
    collections = ["inputs", "outputs", "output_gradients"]
    # None of its modules has nearly all of it, and so may be called in its place.
    model = nn.Sequential(
        nn.Sequential(nn.Linear(64, 8)), nn.ReLU(inplace=True), nn.Linear(8, 64)
    )
    with make_hook(
        run_dir, include_collections=collections, save_config=every_third
    ) as hook:
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counts = []
        for _ in range(5):
            counts.append(
                sum(
                    len(each._forward_hooks) + len(each._forward_pre_hooks)
                    for each in model.modules()
                    if each is not model
                )
            )
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
    assert counts == [10, 0, 0, 10, 0]
    assert set(Recorded(run_dir).rows("gradient/0.0_output_0")) == {0, 3}


def test_a_collection_added_later_holds_from_the_next_step(run_dir: Path) -> None:
    model = mlp()
    hook = Hook(
        run_dir,
        include_collections=["outputs"],
        save_config=SaveConfig(statistics_interval=1),
        min_free_bytes=0,
    )
    with hook:
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = nn.CrossEntropyLoss()
        train(model, criterion, optimizer, digits(8), 2)
        hook.add_collection(hook.get_collection("output_gradients"))
        train(model, criterion, optimizer, digits(8), 2)
    assert set(Recorded(run_dir).rows("gradient/fc1_output_0")) == {2, 3}


@pytest.mark.filterwarnings("ignore:.*vmap")
def test_inside_function_transforms_nothing_breaks(run_dir: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = torch.func.functional_call(model, parameters, (x,))
        return answer.sum()

    with make_hook(run_dir, include_collections=ONLY) as hook:
        hook.register_module(model)
        gradients = torch.func.grad(loss)(parameters, torch.ones(3, 2))
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        assert per_sample(parameters, torch.ones(3, 2))["0.weight"].shape == (3, 1, 2)
    assert gradients["0.weight"].tolist() == [[3.0, 3.0]]
    assert hook.counters()["internal_errors"] == 0
