"""A watched model is saved, loaded and converted as if nobody had watched it."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import tdbg.pytorch as td
from torch_helpers import EVERYTHING, digits, train

pytestmark = pytest.mark.torch

CLASSES = [nn.Sequential, nn.Linear, nn.ReLU]
X = torch.linspace(0.0, 1.0, 5 * 64).reshape(5, 64)
LOAD = """
import sys, torch
model = torch.load(sys.argv[1], weights_only=False)
model(torch.ones(2, 64))
assert not any(each._forward_hooks for each in model.modules())
assert not any(name.split(".")[0] == "tdbg" for name in sys.modules)
"""


def _weights_only(model: nn.Module, _: Path) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals(CLASSES):
        loaded: nn.Module = torch.load(buffer, weights_only=True)
    return loaded


def _another_process(model: nn.Module, folder: Path) -> nn.Module:
    torch.save(model, folder / "model.pt")
    command = [sys.executable, "-c", LOAD, folder / "model.pt"]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return model


def _deepcopy(model: nn.Module, _: Path) -> nn.Module:
    copied = copy.deepcopy(model)
    assert not any(each._forward_hooks for each in copied.modules())
    return copied


def _script(model: nn.Module, _: Path) -> nn.Module:
    return torch.jit.script(model)


def _trace(model: nn.Module, _: Path) -> nn.Module:
    return torch.jit.trace(model, (X,))  # type: ignore[no-any-return]


def _export(model: nn.Module, _: Path) -> nn.Module:
    exported = torch.export.export(model, (X,))
    assert "tdbg" not in str(exported.graph)
    return exported.module()


def _fx(model: nn.Module, _: Path) -> nn.Module:
    return torch.fx.symbolic_trace(model)


def _checkpoint(model: nn.Module, folder: Path) -> nn.Module:
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "checkpoint")
    loaded = _model()
    state = {"model": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder / "checkpoint")
    loaded.load_state_dict(state["model"])
    return loaded


def _compiled(model: nn.Module, _: Path) -> nn.Module:
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert isinstance(compiled, nn.Module)
    return compiled


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "convert",
    [
        _weights_only,
        _another_process,
        _deepcopy,
        _script,
        _trace,
        _export,
        _fx,
        _checkpoint,
        _compiled,
    ],
)
def test_a_watched_model_is_converted_as_any_other(
    run_dir: Path, tmp_path: Path, convert: Callable[[nn.Module, Path], nn.Module]
) -> None:
    model, criterion = _model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = vars(nn.Module)["__getstate__"]
    with td.watch(model, criterion, out=run_dir, save_config=EVERYTHING) as hook:
        train(model, criterion, optimizer, digits(8), 2)
        before = [list(each._forward_hooks) for each in model.modules()]
        converted = convert(model, tmp_path)
        assert torch.equal(converted(X), model(X))
        assert [list(each._forward_hooks) for each in model.modules()] == before
        train(model, criterion, optimizer, digits(8), 2)
        assert hook.counters()["internal_errors"] == 0
    assert vars(nn.Module)["__getstate__"] is state
    assert "__reduce_ex__" not in vars(nn.Module)
    assert len(td.create_trial(run_dir).tensor("1_output_0").steps(mode="TRAIN")) >= 4


class Counted:
    """A base with a state of its own."""

    def __getstate__(self) -> object:
        return {**self.__dict__, "n_copies": 1}


class Tagger(Counted, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 8, batch_first=True)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.lstm(x.unsqueeze(1))[0][:, -1])
        return out


def test_modules_with_a_state_of_their_own_are_saved_as_without_tdbg(
    run_dir: Path,
) -> None:
    # torch.nn.RNNBase has a __getstate__ since its weights are weakly referenced.
    model, criterion = Tagger(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.watch(model, criterion, out=run_dir, save_config=EVERYTHING):
        train(model, criterion, optimizer, digits(8), 2)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        with torch.serialization.safe_globals([Tagger, nn.LSTM, nn.Linear]):
            loaded = torch.load(buffer, weights_only=True)
        copied = copy.deepcopy(model)
        for each in (loaded, copied):
            assert torch.equal(each(X), model(X))
            assert not any(part._forward_hooks for part in each.modules())
        assert copied.n_copies == 1
