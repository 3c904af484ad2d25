"""wandb: the history of an offline run, lists of numbers, read from its own file.

wandb 0.31 sends that file and shows it in a terminal, and has no function any more that
reads it: ``_wandb_log`` does what its ``DataStore`` did until it was removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from benchmarks.reader.contenders import Array, Arrays
from benchmarks.reader.contenders._wandb_log import records


class Format:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, steps: Iterator[Arrays]) -> None:
        """As lists: of an array wandb keeps a histogram."""
        run = wandb.init(mode="offline", dir=str(self.folder), project="reading")
        for step, arrays in enumerate(steps):
            run.log({name: a.tolist() for name, a in arrays.items()}, step=step)
        run.finish()

    def names(self) -> set[str]:
        return {name for _, name, _ in self._items()}

    def one(self, step: int, name: str) -> Array:
        for at, found, text in self._items():
            if at == step and found == name:
                return _array(text)
        raise KeyError(name)

    def column(self, name: str) -> list[Array]:
        return [_array(text) for _, found, text in self._items() if found == name]

    def everything(self) -> Iterator[Array]:
        for _, _, text in self._items():
            yield _array(text)

    def _items(self) -> Iterator[tuple[int, str, str]]:
        """Step, name and JSON of each value that was logged."""
        (path,) = self.folder.glob("wandb/offline-run-*/*.wandb")
        for record in records(path.read_bytes()):
            message = Record.FromString(record)
            for item in message.history.item:
                name = item.key or item.nested_key[0]
                if not name.startswith("_"):
                    yield message.history.step.num, name, item.value_json


def _array(text: str) -> Array:
    return np.array(json.loads(text), np.float32)
