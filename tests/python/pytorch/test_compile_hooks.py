"""Hooks and a compiler that looks at them once: when they come, stay and go."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tdbg.pytorch import SaveConfig
from torch_helpers import Recorded, digits, make_hook, mlp


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@dataclasses.dataclass
class _Pair:
    first: torch.Tensor
    rest: list[torch.Tensor]


class _Giver(nn.Module):
    """Answers with whatever it was made for."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: torch.Tensor, *, extra: dict[str, torch.Tensor]) -> Any:
        y = self.fc(x) + extra["bias"]
        if self.kind == "tuple":
            return y, (y + 1, None, "text")
        if self.kind == "dict":
            return {"b": y, "a": [y + 1]}
        if self.kind == "dataclass":
            return _Pair(y, [y + 1, y + 2])
        return {"both": _Pair(y, [y + 1]), "number": 3}


class _Taker(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.giver = _Giver(kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: Any = self.giver(x, extra={"bias": x * 2})
        if isinstance(answer, dict):
            answer = next(iter(answer.values()))
        if isinstance(answer, tuple):
            answer = answer[0]
        result: torch.Tensor = getattr(answer, "first", answer)
        return result


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass", "nested"])
def test_structures_have_the_same_tensors_as_without_the_compiler(
    run_dir: Path, kind: str
) -> None:
    def run(directory: Path, wrap: Callable[..., Any]) -> Recorded:
        torch.manual_seed(3)
        model = _Taker(kind)
        hook = make_hook(directory)
        hook.register_module(model)
        wrap(model)(torch.ones(2, 4))
        hook.close()
        return Recorded(directory)

    def wrap(model: nn.Module) -> Any:
        return torch.compile(model, backend="eager", fullgraph=True)

    plain, found = run(run_dir / "a", lambda each: each), run(run_dir / "b", wrap)
    assert found.names == plain.names
    assert "giver_output_1" in found.names
    for name in plain.names:
        for step, value in plain.values(name).items():
            assert (found.values(name)[step] == value).all(), name


def test_under_vmap_a_tensor_is_refused_and_counted(run_dir: Path) -> None:
    """As without the compiler, which finds no memory to read either."""
    model = mlp()
    hook = make_hook(run_dir, include_collections=["outputs"])
    hook.register_module(model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(model.fc1)(x)

    assert torch.allclose(function(torch.ones(3, 64)), model.fc1(torch.ones(3, 64)))
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 1
    hook.close()


def _late(kind: str) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """A model that is compiled already, and how it is called."""
    model = nn.Sequential(mlp(), nn.Linear(10, 4))
    # A ReLU calls a function that a hook diverts: that alone compiles it anew.
    model[0].relu = nn.Identity()
    call: Any = model
    if kind == "wrapper":
        call = torch.compile(model, backend="aot_eager")
    elif kind == "part":
        model[0].compile(backend="aot_eager")
    elif kind in {"function", "closure"}:
        call = torch.compile(lambda x: model(x) * 1, backend="aot_eager")
    call(torch.ones(2, 64))
    return model, call


@pytest.mark.parametrize("kind", ["wrapper", "part", "function", "closure"])
def test_a_hook_that_comes_too_late_says_so(
    run_dir: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Nothing of it can be captured any more, which must not pass in silence."""
    model, call = _late(kind)
    hook = make_hook(run_dir)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    with caplog.at_level(logging.WARNING, "tdbg"):
        for _ in range(3):
            if kind == "closure":
                optimizer.step(lambda: call(torch.ones(2, 64)).sum().backward())
            else:
                call(torch.ones(2, 64)).sum().backward()
                optimizer.step()
    told = [each.getMessage() for each in caplog.records if each.name == "tdbg"]
    assert len(told) == 1
    assert "torch.compiler.reset()" in told[0]
    assert ("Sequential.0:" if kind == "part" else "Sequential:") in told[0]
    torch.compiler.reset()
    call(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert hook.counters()["unseen_modules"] == 0
    hook.close()
    assert set(Recorded(run_dir).rows("0.relu_output_0")) == {3}


def test_a_forward_inside_the_step_of_an_optimizer_is_heard(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As trainers do it, which give every optimizer a closure."""
    model = mlp()
    hook = make_hook(run_dir)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    compiled = torch.compile(model, backend="aot_eager")

    def closure() -> float:
        loss = compiled(torch.ones(2, 64)).sum()
        loss.backward()
        return loss.item()

    for _ in range(3):
        optimizer.step(closure)
    hook.close()
    assert not [each for each in caplog.records if each.name == "tdbg"]
    assert set(Recorded(run_dir).rows("relu_output_0")) == {0, 1, 2}


@pytest.mark.parametrize(("n_graphs", "n_steps"), [(0, 3), (1, 1)])
def test_steps_without_a_forward_alone_are_no_reason_to_warn(
    run_dir: Path, caplog: pytest.LogCaptureFixture, n_graphs: int, n_steps: int
) -> None:
    """Nothing was compiled, or it happened once."""
    for _ in range(n_graphs):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    model = mlp()
    hook = make_hook(run_dir)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(n_steps):
        optimizer.step()
    model(torch.ones(2, 64))
    hook.close()
    assert not [each for each in caplog.records if each.name == "tdbg"]


def test_a_module_that_is_never_called_is_no_reason_to_warn(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    model.add_module("idle", nn.Linear(1, 1))
    model.compile(backend="aot_eager")
    hook = make_hook(run_dir)
    hook.register_module(model)
    model(torch.ones(2, 64))
    hook.close()
    assert not [each for each in caplog.records if each.name == "tdbg"]
    assert hook.counters()["unseen_modules"] == 0


def test_hooks_that_are_away_are_back_before_anything_is_traced(run_dir: Path) -> None:
    """A graph that is made at a quiet step would have no hooks for ever."""
    model = mlp()
    every_third = SaveConfig(save_interval=3, statistics_interval=3)
    hook = make_hook(run_dir, save_config=every_third)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(x)
        return result

    for step in range(8):
        inputs, _ = next(digits(8))
        if step in {1, 2}:
            assert not model.fc1._forward_hooks
        call = model if step < 2 else function
        call(inputs).sum().backward()
        optimizer.step()
    assert model.fc1._forward_hooks
    hook.close()
    assert int(counters["stats"]["unique_graphs"]) == 1
    assert set(Recorded(run_dir).rows("relu_output_0")) == {0, 3, 6}


def test_hooks_that_are_away_are_back_after_the_compiler_was_reset(
    run_dir: Path,
) -> None:
    """A reset forgets the callback that puts them back."""
    model = mlp()
    every_third = SaveConfig(save_interval=3, statistics_interval=3)
    hook = make_hook(run_dir, save_config=every_third)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    function: Any = torch.compile(lambda x: model(x) * 1, backend="aot_eager")
    for step in range(8):
        inputs, _ = next(digits(8))
        if step in {1, 2, 4}:
            assert not model.fc1._forward_hooks
        if step in {2, 4}:
            torch.compiler.reset()
        call = model if step < 5 else function
        call(inputs).sum().backward()
        optimizer.step()
    hook.close()
    assert set(Recorded(run_dir).rows("relu_output_0")) == {0, 3, 6}


def test_a_hook_after_a_closed_one_is_heard(run_dir: Path) -> None:
    """The first one's hooks are gone, so the model is compiled anew with its own."""
    model = mlp()
    first = make_hook(run_dir / "first")
    first.register_module(model)
    wrapper = torch.compile(model, backend="aot_eager", fullgraph=True)
    wrapper(torch.ones(2, 64))
    second = make_hook(run_dir / "second")
    second.register_module(model)
    wrapper(torch.ones(2, 64))
    wrapper(torch.ones(2, 64))
    seen = second.counters()["unseen_modules"]
    second.close()
    rows = Recorded(run_dir / "second").rows("fc1_output_0")
    assert (len(rows), seen) == (2, 0)


class _InOneGraph(torch.optim.Optimizer):
    """PyTorch's own leave the graph before and after the update; this one does not."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * group["lr"])


def test_a_step_that_is_one_graph_is_read_before_it_and_ended_after_it(
    run_dir: Path,
) -> None:
    """Parameters get their new values when the graph has ended."""
    told: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        ours = [n for n in graph.graph.nodes if str(n.target).startswith("tdbg.call")]
        told.extend(len(node.all_input_nodes) for node in ours)
        compiler: Any = torch._dynamo.lookup_backend("aot_eager")
        return compiler(graph, inputs)

    def run(directory: Path, wrap: Callable[..., Any]) -> Recorded:
        model = mlp()
        optimizer = _InOneGraph(model.parameters())
        hook = make_hook(directory, include_collections=["weights", "updates"])
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        step = wrap(optimizer.step)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
            step()
            optimizer.zero_grad(set_to_none=False)
        assert hook.counters()["internal_errors"] == 0
        hook.close()
        return Recorded(directory)

    def compiled(step: Any) -> Any:
        return torch.compile(step, backend=backend, fullgraph=True)

    plain, found = run(run_dir / "a", lambda each: each), run(run_dir / "b", compiled)
    assert found.names == plain.names
    assert "update/fc1.weight" in found.names
    for name in plain.names:
        for number, value in plain.values(name).items():
            assert (found.values(name)[number] == value).all(), name
    # Four parameters, four gradients: the reading cannot be moved behind the update.
    assert told
    assert max(told) >= 8
