"""Whatever a module takes and returns: its tensors are found, and it is left alone."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tdbg import create_trial
from torch_helpers import Recorded, make_hook

pytestmark = pytest.mark.torch


@dataclasses.dataclass
class Data:
    first: torch.Tensor
    second: Any = None


class Named(NamedTuple):
    first: torch.Tensor
    second: Any = None


class Passes(nn.Module):
    """Returns what it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else kwargs


def model_output(first: torch.Tensor, second: torch.Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=first, hidden_states=(second,))


KINDS: dict[str, Any] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, [b]],
    "dict": lambda a, b: {"x": a, "y": {"z": b}},
    "ordered": lambda a, b: OrderedDict(b=a, a=b),
    "dataclass": Data,
    "nested dataclass": lambda a, b: Data(a, [Data(b)]),
    "named tuple": Named,
    "mixed": lambda a, b: {"n": 3, "text": "x", "none": None, "t": Named(a, (b, 1.5))},
    "model output": model_output,
}
NEEDS = {"model output": pytest.mark.needs("transformers")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in KINDS]
)
@pytest.mark.parametrize("keyword", [False, True])
def test_tensors_of_any_structure_are_recorded(
    run_dir: Path, kind: str, keyword: bool
) -> None:
    given = KINDS[kind](torch.tensor([1.0]), torch.tensor([2.0]))
    model = nn.ModuleDict({"inner": Passes()})
    with make_hook(run_dir, include_collections=["inputs", "outputs"]) as hook:
        hook.register_module(model)
        inner = model["inner"]
        answer = inner(value=given)["value"] if keyword else inner(given)
        assert answer is given
    assert hook.counters()["internal_errors"] == hook.counters()["dropped"] == 0
    recorded = Recorded(run_dir)
    assert {name: recorded.values(name)[0].tolist() for name in recorded.names} == {
        "inner_input_0": [1.0],
        "inner_input_1": [2.0],
        "inner_output_0": [1.0],
        "inner_output_1": [2.0],
    }


def test_positional_arguments_come_before_keywords(run_dir: Path) -> None:
    class Attends(nn.Module):
        def forward(
            self, query: Any, *, key: Any = None, mask: Any = None
        ) -> dict[str, Any]:
            return {"scores": query @ key.T, "mask": mask}

    q, k = torch.ones(1, 2), torch.full((3, 2), 2.0)
    with make_hook(run_dir) as hook:
        model = Attends()
        hook.register_module(model)
        model(q, mask=torch.tensor([True]), key=k)
    recorded = Recorded(run_dir)
    assert recorded.values("Attends_input_0")[0].tolist() == [[1, 1]]
    assert recorded.values("Attends_input_1")[0].tolist() == [True]
    assert recorded.values("Attends_input_2")[0].shape == (3, 2)
    assert recorded.values("Attends_output_0")[0].tolist() == [[4, 4, 4]]


def test_iterators_are_left_alone(run_dir: Path) -> None:
    def tensors() -> Iterator[torch.Tensor]:
        yield torch.ones(1)
        yield torch.ones(2)

    class Lazy(nn.Module):
        def forward(self, values: Iterator[torch.Tensor]) -> Any:
            return (each + 1 for each in values)

    with make_hook(run_dir) as hook:
        model = Lazy()
        hook.register_module(model)
        answer = model(tensors())
        assert [len(each) for each in answer] == [1, 2]
    assert hook.counters()["internal_errors"] == 0
    assert Recorded(run_dir).names == set()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_recurrent_layers_with_packed_sequences(run_dir: Path) -> None:
    model = nn.LSTM(3, 4, batch_first=True)
    packed = pack_padded_sequence(
        torch.ones(2, 5, 3), torch.tensor([5, 2]), batch_first=True
    )
    with make_hook(run_dir, include_collections=["inputs", "outputs"]) as hook:
        hook.register_module(model)
        output, (hidden, cell) = model(packed)
    assert hook.counters()["internal_errors"] == 0
    recorded = Recorded(run_dir)
    # The data and the batch sizes; then the states.
    assert recorded.values("LSTM_input_0")[0].shape == (7, 3)
    assert recorded.values("LSTM_input_1")[0].tolist() == [2, 2, 1, 1, 1]
    assert recorded.values("LSTM_output_0")[0].tobytes() == (
        output.data.detach().numpy().tobytes()
    )
    for index, state in ((2, hidden), (3, cell)):
        found = recorded.values(f"LSTM_output_{index}")[0]
        assert found.tobytes() == state.detach().numpy().tobytes()


def test_a_structure_that_holds_itself_or_raises_ends_nothing(run_dir: Path) -> None:
    @dataclasses.dataclass
    class Raises:
        tensor: torch.Tensor
        after: Any = None

        def __getattribute__(self, name: str) -> Any:
            if name == "after":
                raise RuntimeError
            return super().__getattribute__(name)

    endless: list[Any] = [torch.ones(1)]
    endless.append(endless)
    model = nn.ModuleDict({"inner": Passes()})
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        inner = model["inner"]
        assert inner(endless) is endless
        raises = Raises(torch.ones(1))
        for _ in range(3):
            assert inner(raises) is raises
        inner(torch.ones(1))
    assert "inner_output_0" in Recorded(run_dir).names
    assert hook.counters()["internal_errors"] == 0


def test_all_names_of_what_is_shared_lead_to_it(run_dir: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight
            self.act = self.same = nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.act(self.embedding(x)))
            return result

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(torch.tensor([1])).sum().backward()
        optimizer.step()
    trial = create_trial(run_dir)
    for name, alias in (
        ("embedding.weight", "head.weight"),
        ("gradient/embedding.weight", "gradient/head.weight"),
        ("act_output_0", "same_output_0"),
        ("act_input_0", "same_input_0"),
    ):
        assert name in trial.tensor_names()
        assert alias not in trial.tensor_names()
        first, second = trial.tensor(name), trial.tensor(alias)
        assert first.value(0).tobytes() == second.value(0).tobytes()
        assert first.reduction_value(0, "mean") == second.reduction_value(0, "mean")
