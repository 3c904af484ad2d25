"""What is captured where ``torch.compile`` compiles: the same, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from tdbg.pytorch import Hook, SaveConfig, TrainingStopped
from tdbg.run.requests import request_stop
from torch_helpers import Recorded, cnn, digits, make_hook, mlp

EVERY_SECOND = SaveConfig(save_interval=2, statistics_interval=2)
N_STEPS = 5

# The compiler's own: it looks at every attribute, and inductor scripts a little.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*script.* is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compiled(function: Any, backend: str = "aot_eager") -> Any:
    """In one graph, or not at all."""
    return torch.compile(function, backend=backend, fullgraph=True)


def graphs() -> int:
    """Made since the last call; none of them was broken."""
    assert dict(counters["graph_break"]) == {}
    number = int(counters["stats"]["unique_graphs"])
    counters.clear()
    return number


def same(one: Recorded, other: Recorded, tolerance: float = 0.0) -> None:
    """Everything that was recorded is the same."""
    assert one.steps == other.steps
    assert one.names == other.names
    for name in one.names:
        rows, others = one.rows(name), other.rows(name)
        assert rows.keys() == others.keys(), name
        for step, found in rows.items():
            assert len(found) == len(others[step]), (name, step)
            for row, expected in zip(found, others[step], strict=True):
                # As they are stored minimum and maximum have no distance.
                extremes = () if tolerance else ("min", "max")
                for field in ("count", "mean", *extremes):
                    left, right = float(row[field]), float(expected[field])
                    assert left == pytest.approx(right, tolerance, tolerance), name
        values, other_values = one.values(name), other.values(name)
        assert values.keys() == other_values.keys(), name
        for step, value in values.items():
            np.testing.assert_allclose(
                value.astype(np.float64),
                other_values[step].astype(np.float64),
                tolerance,
                tolerance,
                err_msg=name,
            )


def _hook(run_dir: Path, model: nn.Module, loss: nn.Module) -> Hook:
    hook = make_hook(run_dir, save_config=EVERY_SECOND)
    hook.register_module(model)
    hook.register_loss(loss)
    return hook


def _hook_first(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    hook = _hook(run_dir, model, loss)
    wrapper = compiled(model)
    return hook, lambda x, y: loss(wrapper(x), y)


def _compile_first(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    wrapper = compiled(model)
    return _hook(run_dir, model, loss), lambda x, y: loss(wrapper(x), y)


def _wrapper_registered(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    wrapper = compiled(model)
    return _hook(run_dir, wrapper, loss), lambda x, y: loss(wrapper(x), y)


def _part_in_place(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    model.compile(backend="aot_eager", fullgraph=True)
    return _hook(run_dir, model, loss), lambda x, y: loss(model(x), y)


def _step_function(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    hook = _hook(run_dir, model, loss)
    return hook, compiled(lambda x, y: loss(model(x), y))


def _eager(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
    return _hook(run_dir, model, loss), lambda x, y: loss(model(x), y)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.relu(self.fc(x))
        return result


class _Net(nn.Module):
    """One whose class is not PyTorch's own, around one whose classes are."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = cnn().to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x)
        return result


def _train(
    run_dir: Path,
    arrange: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    *,
    is_small: bool = False,
) -> Recorded:
    model = mlp() if is_small else _Net(dtype)
    hook, forward = arrange(run_dir, model, nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = digits(8, images=not is_small)
    for _ in range(N_STEPS):
        for _ in range(2):
            inputs, labels = next(batches)
            forward(inputs.to(dtype), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert hook.counters()["internal_errors"] == 0
    assert hook.counters()["refused_tensors"] == 0
    assert hook.counters()["unseen_modules"] == 0
    hook.close()
    return Recorded(run_dir)


@pytest.mark.parametrize(
    "arrange",
    [_hook_first, _compile_first, _wrapper_registered, _part_in_place, _step_function],
)
def test_all_is_captured_in_one_graph_whatever_the_order(
    run_dir: Path, arrange: Callable[..., Any]
) -> None:
    """Bit for bit as without the compiler, in-place ReLU and micro-batches included.

    Hooks that go at quiet steps would make a second graph; an operator that is not
    kept in order, or reads what was written in place, would record other values.
    """
    found = _train(run_dir / "compiled", arrange)
    assert graphs() == 1
    same(found, _train(run_dir / "eager", _eager))
    assert set(found.values("body.5_output_0")) == {0, 2, 4}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_backends_agree(run_dir: Path, backend: str) -> None:
    def arrange(run_dir: Path, model: nn.Module, loss: nn.Module) -> Any:
        hook, wrapper = _hook(run_dir, model, loss), compiled(model, backend)
        return hook, lambda x, y: loss(wrapper(x), y)

    is_small = backend == "inductor"  # It calls a compiler of C++ for each graph.
    expected = _train(run_dir / "without", _eager, is_small=is_small)
    found = _train(run_dir / "with", arrange, is_small=is_small)
    same(found, expected, 1e-4 if is_small else 0.0)
    assert graphs() == 1


def test_bfloat16_is_the_same(run_dir: Path) -> None:
    expected = _train(run_dir / "without", _eager, torch.bfloat16)
    same(_train(run_dir / "with", _step_function, torch.bfloat16), expected)


def _train_with_steps(run_dir: Path, wrap: Callable[..., Any]) -> Any:
    """A loss function and an optimizer's step, each wrapped."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hook = make_hook(run_dir)
    hook.register_module(model)
    hook.register_optimizer(optimizer)
    loss = wrap(hook.register_loss(nn.functional.cross_entropy))
    # PyTorch leaves the graph once in every step, fullgraph or not.
    step: Any = torch.compile(optimizer.step, backend="aot_eager")
    step = step if wrap is compiled else optimizer.step
    batches = digits(8)
    for _ in range(4):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        step()
        model.eval()
        model(inputs)
        model.train()
    assert hook.counters()["internal_errors"] == 0
    is_live = hook.counters()["is_live"]
    hook.close()
    return Recorded(run_dir) if is_live else None


def test_a_compiled_step_and_a_compiled_loss(run_dir: Path) -> None:
    """Parameters as before the update, though values are written as the graph ends."""
    plain = _train_with_steps(run_dir / "plain", lambda each: each)
    found = _train_with_steps(run_dir / "compiled", compiled)
    broken = dict(counters["graph_break"])
    counters.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TDBG_DISABLED", "1")
        _train_with_steps(run_dir / "without", compiled)
    assert broken == dict(counters["graph_break"])
    same(found, plain, 1e-5)
    assert "cross_entropy_output_0" in found.names


def test_evaluation_and_stops_are_those_of_a_plain_model(run_dir: Path) -> None:
    """Also where the beginning of a forward is inside the graph."""

    def run(directory: Path, wrap: Callable[..., Any]) -> Recorded:
        model = mlp()
        hook = make_hook(directory)
        hook.register_module(model)
        forward = wrap(lambda x: model(x) * 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, _ = next(digits(8))

        def train(n_steps: int) -> None:
            for _ in range(n_steps):
                forward(inputs).sum().backward()
                optimizer.step()

        for _ in range(3):
            train(1)
            model.eval()
            with torch.no_grad():
                forward(inputs)
                forward(inputs)
            model.train()
        request_stop(directory, reason="enough")
        with pytest.raises(TrainingStopped, match="enough"):
            train(20_000)  # Until it is heard, a tenth of a second later.
        assert hook.should_stop
        hook.close()
        return Recorded(directory)

    plain, found = run(run_dir / "a", lambda each: each), run(run_dir / "b", compiled)
    assert graphs() == 2  # One of training, one of evaluation.
    assert [step[1:] for step in found.steps[:9]] == [
        step[1:] for step in plain.steps[:9]
    ]
    assert found.names == plain.names


def test_a_block_that_is_there_many_times_is_compiled_once(run_dir: Path) -> None:
    """More often than the compiler allows one function to be compiled.

    Hooks named by a number would be compiled anew for each block.
    """
    blocks = nn.Sequential(*(_Block() for _ in range(10)))

    def run() -> int:
        for block in blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        for _ in range(2):
            blocks(torch.ones(2, 4)).sum().backward()
        return graphs()

    alone = run()
    torch.compiler.reset()
    hook = make_hook(run_dir)
    hook.register_module(blocks)
    assert run() == alone
    hook.close()
    found = Recorded(run_dir)
    for number in range(10):
        assert len(found.rows(f"{number}.relu_output_0")) == 2


def test_other_shapes_do_not_compile_more_often_than_without(run_dir: Path) -> None:
    def run() -> int:
        model = mlp()
        hook = make_hook(run_dir)
        if is_hooked:
            hook.register_module(model)
        wrapper = compiled(model)
        for size in (8, 9, 5, 12, 9):
            wrapper(torch.ones(size, 64)).sum().backward()
        hook.close()
        return graphs()

    is_hooked = False
    alone = run()
    torch.compiler.reset()
    is_hooked = True
    assert run() == alone
    rows = Recorded(run_dir).rows("fc1_output_0")
    assert [int(row["count"]) for found in rows.values() for row in found] == [
        size * 24 for size in (8, 9, 5, 12, 9)
    ]


def test_a_checkpointed_part_is_captured_once(run_dir: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.part, x, use_reentrant=False)  # type: ignore[no-any-return]

    model = Net()
    hook = make_hook(run_dir)
    hook.register_module(model)
    compiled(model)(torch.ones(4, 64)).sum().backward()
    hook.close()
    assert graphs() == 1
    found = Recorded(run_dir).rows("part.relu_output_0")
    assert [len(rows) for rows in found.values()] == [1]


def test_a_hook_can_go_and_a_copy_has_none(run_dir: Path) -> None:
    model = mlp()
    hook = make_hook(run_dir)
    hook.register_module(model)
    wrapper = compiled(model)
    inputs = torch.ones(4, 64)
    expected = wrapper(inputs)
    copied = compiled(copy.deepcopy(model))
    assert torch.equal(copied(inputs), expected)
    exported = torch.export.export(model, (inputs,)).graph_module
    assert not [node for node in exported.graph.nodes if "tdbg" in str(node.target)]
    hook.close()
    assert torch.equal(wrapper(inputs), expected)
    assert len(Recorded(run_dir).rows("fc1_output_0")) == 1
