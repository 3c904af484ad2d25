"""TensorBoard: an event file, read by its own loader from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray, make_tensor_proto

from benchmarks.reader.contenders import Array, Arrays


class Format:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, steps: Iterator[Arrays]) -> None:
        writer = EventFileWriter(str(self.folder))
        for step, arrays in enumerate(steps):
            values = [
                Summary.Value(tag=name, tensor=make_tensor_proto(arrays[name]))
                for name in sorted(arrays)
            ]
            writer.add_event(Event(step=step, summary=Summary(value=values)))
        writer.close()

    def names(self) -> set[str]:
        return {value.tag for _, value in self._values()}

    def one(self, step: int, name: str) -> Array:
        for at, value in self._values():
            if at == step and value.tag == name:
                return np.asarray(make_ndarray(value.tensor))
        raise KeyError(name)

    def column(self, name: str) -> list[Array]:
        found = (value for _, value in self._values() if value.tag == name)
        return [np.asarray(make_ndarray(value.tensor)) for value in found]

    def everything(self) -> Iterator[Array]:
        for _, value in self._values():
            yield np.asarray(make_ndarray(value.tensor))

    def _values(self) -> Iterator[tuple[int, Summary.Value]]:
        (path,) = self.folder.iterdir()
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value
