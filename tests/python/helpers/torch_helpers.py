"""What the tests of the PyTorch hook share: data, models, and what was recorded."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from tdbg import _core
from tdbg.config import Collection
from tdbg.config.collections import NO_TENSORS, Role
from tdbg.pytorch import Hook, SaveConfig
from tdbg.run.directory import writer_directories

EVERYTHING = SaveConfig(save_interval=1, statistics_interval=1)
#: What events of the profiler are about; they come by the clock.
OF_PROFILE = {
    *("machine", "python_lines", "loader", "loader_start", "collectives", "gc"),
    *("compilation", "checkpoint", "profile_window", "operators", "functions"),
}


def make_hook(run_dir: Path, **options: Any) -> Hook:
    """A hook that takes everything at every step, unless told otherwise."""
    settings: dict[str, Any] = {"save_config": EVERYTHING, "min_free_bytes": 0}
    if "include_collections" not in options and "collections" not in options:
        settings["save_all"] = True
    return Hook(run_dir, **{**settings, **options})


def custom(regex: str) -> list[Collection]:
    """One custom collection, as ``collections`` of a hook."""
    return [Collection("custom", regex)]


# To read the file takes longer than a short training.
_digits = functools.cache(load_digits)


def digits(
    batch_size: int, *, images: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Real batches, for ever."""
    data = _digits()
    inputs = torch.tensor(data.data / 16.0, dtype=torch.float32)
    if images:
        inputs = inputs.reshape(-1, 1, 8, 8)
    labels = torch.tensor(data.target)
    order = torch.Generator().manual_seed(1)
    while True:
        chosen = torch.randint(len(inputs), (batch_size,), generator=order)
        yield inputs[chosen], labels[chosen]


def mlp() -> nn.Module:
    """A small network on digits, with named parts."""
    torch.manual_seed(3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(64, 24)
            self.relu = nn.ReLU()
            self.fc2 = nn.Linear(24, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.fc2(self.relu(self.fc1(x)))
            return result

    return Net()


def cnn() -> nn.Module:
    """A small convolutional network on digits; its second ReLU works in place."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def train(
    model: nn.Module,
    criterion: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    n_steps: int,
) -> list[float]:
    """The plainest training; returns its losses."""
    losses = []
    for _ in range(n_steps):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def parts(
    **options: Any,
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, Any]:
    """A model, its loss, its optimizer, and batches for it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    return model, nn.CrossEntropyLoss(), optimizer, digits(16)


class Recorded:
    """Everything that the newest writer of a run recorded."""

    def __init__(self, run_dir: Path) -> None:
        reader = _core.RunReader(str(writer_directories(run_dir)[-1].path))
        assert reader.problems() == []
        self.definitions = {each.id: each for each in reader.definitions()}
        self.by_name = {each.name: each for each in reader.definitions()}
        self.steps = [
            tuple(int(row[key]) for key in ("step", "mode", "mode_step", "flags"))
            for row in reader.steps()
        ]
        self.step_table = reader.steps()
        self._rows = reader.rows()
        self._scalars = reader.scalars()
        self._events = reader.events()
        self.histograms = reader.histograms()
        self._tensors = [
            (row, reader.read_tensor(index))
            for index, row in enumerate(reader.tensors())
        ]

    @property
    def names(self) -> set[str]:
        """Of every tensor and number that is defined."""
        return {
            name
            for name, each in self.by_name.items()
            if Role(each.role) not in NO_TENSORS
        }

    def _name(self, row: np.void) -> str:
        return self.definitions[int(row["definition"])].name

    def values(self, name: str) -> dict[int, NDArray[Any]]:
        """Raw values by step; a step has one."""
        found: dict[int, NDArray[Any]] = {}
        for row, raw in self._tensors:
            if self._name(row) == name:
                definition = self.definitions[int(row["definition"])]
                text = definition.dtype
                dtype = np.dtype(getattr(ml_dtypes, text, text))
                assert int(row["step"]) not in found
                found[int(row["step"])] = raw.view(dtype).reshape(definition.shape)
        return found

    def rows(self, name: str) -> dict[int, list[np.void]]:
        """Statistics by step, one entry per micro-batch."""
        found: dict[int, list[np.void]] = {}
        for row in self._rows:
            if self._name(row) == name:
                found.setdefault(int(row["step"]), []).append(row)
        return found

    def scalars(self, name: str) -> list[tuple[int, float]]:
        """Steps and values of a scalar."""
        return [
            (int(row["step"]), float(row["value"]))
            for row in self._scalars
            if self._name(row) == name
        ]

    def events(self, kind: int) -> list[dict[str, Any]]:
        """The contents of the events of a kind, without those of the profile."""
        found = [json.loads(each.json) for each in self._events if each.kind == kind]
        return [each for each in found if each.get("what") not in OF_PROFILE]

    @property
    def collections(self) -> dict[str, Any]:
        """The collections as they were told last."""
        content: dict[str, Any] = self.events(2)[-1]["collections"]
        return content


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, in C order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def mean_of(rows: list[np.void]) -> float:
    """The mean over the micro-batches of a step."""
    count = sum(int(row["count"]) for row in rows)
    return sum(float(row["mean"]) * int(row["count"]) for row in rows) / count
