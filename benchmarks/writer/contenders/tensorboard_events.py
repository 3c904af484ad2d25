"""TensorBoard events: one file, one event a step, one tensor value a tensor."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from benchmarks.writer.contenders import Arrays


class Store:
    """What a SummaryWriter writes to, given tensors."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._arrays = arrays
        self._folder = folder
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int) -> None:
        """An event, and a flush."""
        summary = Summary()
        for name, array in self._arrays.items():
            value = summary.value.add(tag=name)
            value.tensor.CopyFrom(tensor_util.make_tensor_proto(array))
        self._writer.add_event(Event(step=step, summary=summary))
        self._writer.flush()

    def read(self, step: int) -> Arrays:
        """The last event of the step."""
        found = {}
        for path in self._folder.iterdir():
            for event in EventFileLoader(str(path)).Load():
                if event.step != step:
                    continue
                for value in event.summary.value:
                    found[value.tag] = tensor_util.make_ndarray(value.tensor)
        return found

    def forget(self, step: int) -> None:
        """Steps share a file."""

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
