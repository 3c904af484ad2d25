"""Reads what a worker saved at one step, and writes it into a run.

The index says where each tensor is.  Where it cannot be read, or contradicts the
tensors, the event file is read from its beginning: it says all but the shapes of
tensors that have no values.

Thread safety: none.

Errors: ``StorageError`` where the run cannot be written; what cannot be read of the
step is counted and named in the run.
"""

from __future__ import annotations

import contextlib

import numpy as np

from tdbg.config.collections import Role
from tdbg.errors import ConfigurationError
from tdbg.importers.smdebug import index
from tdbg.importers.smdebug.damage import Damage
from tdbg.importers.smdebug.events import (
    MAX_RECORD_BYTES,
    StoredTensor,
    read_record,
    records_of,
)
from tdbg.importers.smdebug.files import Files, OpenFile
from tdbg.importers.smdebug.index import Index, StoredAt
from tdbg.importers.smdebug.names import Names, Tensor, reduction_in
from tdbg.importers.smdebug.worker import WorkerWriter
from tdbg.modes import ModeKeys
from tdbg.run.told_names import reduction_name, shape_name

__all__ = ["StepFiles", "convert_step"]


class StepFiles:
    """The two files of a worker's step.

    Args:
        files: The output directory.
        step: The global step.
        worker: The worker, as its files name it.

    Attributes:
        stamp: A text that is another one once one of them was written anew.
    """

    def __init__(self, files: Files, step: int, worker: str) -> None:
        self.step = step
        self.index_file = index.index_file(step, worker)
        self.event_file = index.event_file(step, worker)
        self.worker = worker
        # Before either is read.
        self.stamp = f"{files.stamp(self.index_file)} {files.stamp(self.event_file)}"
        self._files = files
        self._index: Index | None = None

    def open_events(self) -> contextlib.AbstractContextManager[OpenFile]:
        """Open the file with the tensors.

        Raises:
            Damage: If it cannot be read.
        """
        return self._files.open(self.event_file)

    def read_index(self) -> Index:
        """Return what the index says; it is read once.

        Raises:
            Damage: If it cannot be read, is no index, or one of other files.
        """
        if self._index is None:
            with self._files.open(self.index_file) as file:
                self._index = index.parse(index.load(file), self.event_file)
        return self._index

    def names(self) -> list[str]:
        """Return the names of the tensors, as far as the index can be read."""
        try:
            found = self.read_index()
        except Damage:
            return []
        return [place.name for place in found.places] + [*found.shapes]


def convert_step(files: StepFiles, writer: WorkerWriter, names: Names) -> int:
    """Write a step into a run.

    Args:
        files: The step's files.
        writer: The run of the worker.
        names: What smdebug's names stand for.

    Returns:
        How many tensors cannot be read.

    Raises:
        StorageError: If the run cannot be written, or the place of the files does not
            answer.
    """
    step = _Step(files, writer, names)
    try:
        found = files.read_index()
    except Damage as damage:
        step.lose(files.index_file, f"its index cannot be read: {damage}")
        found = None
    if found is None or found.places:
        try:
            with files.open_events() as file:
                step.convert(found, file)
        except Damage as damage:
            step.lose_all(found, f"its event file cannot be read: {damage}")
    if found is not None:
        step.mention_shapes(found)
    step.end()
    return step.n_lost


class _Step:
    """A step while it is converted."""

    def __init__(self, files: StepFiles, writer: WorkerWriter, names: Names) -> None:
        self.n_lost = 0
        self._files = files
        self._writer = writer
        self._names = names
        self._wall_ns = 0
        self._identity: tuple[ModeKeys, int] | None = None

    def convert(self, found: Index | None, file: OpenFile) -> None:
        """Write the tensors of the event file."""
        if found is not None:
            first = self._first_readable(found, file)
            if first is not None and _contradicts(found, first):
                reason = f"its index says {found.mode.name} {found.mode_step}"
                self.lose(self._files.index_file, f"{reason}, its tensors do not")
                found = None
        if found is None:
            found = self._scanned(file)
        if found is None:
            return
        self._identity = found.mode, found.mode_step
        longest = max((place.length for place in found.places), default=0)
        self._writer.make_room(min(longest, file.size, MAX_RECORD_BYTES))
        for place in found.places:
            self._convert_tensor(place, found, file)

    def lose(self, name: str, reason: str) -> None:
        """Count something that cannot be read."""
        self.n_lost += 1
        self._writer.lose(self._files.step, name, reason)

    def lose_all(self, found: Index | None, reason: str) -> None:
        """Count all tensors of the step."""
        if found is None:
            self.lose(self._files.event_file, reason)
            return
        self._identity = found.mode, found.mode_step
        for place in found.places:
            self.lose(self._names.of(place.name).name, reason)

    def mention_shapes(self, found: Index) -> None:
        """Write the shapes of tensors of which no values were saved."""
        self._identity = self._identity or (found.mode, found.mode_step)
        saved = {place.name for place in found.places}
        for name, shape in found.shapes.items():
            if name not in saved:
                of = self._names.of(name, found.originals.get(name, ""))
                aliases = tuple(shape_name(each) for each in of.aliases)
                tensor = Tensor(shape_name(of.name), Role.OTHER, aliases)
                value = np.array(shape, np.int64)
                self._writer.tensor(self._files.step, tensor, value)

    def end(self) -> None:
        """Close the step, if its mode is known."""
        if self._identity is not None:
            mode, mode_step = self._identity
            self._writer.end_step(self._files.step, mode, mode_step, self._wall_ns)

    def _first_readable(self, found: Index, file: OpenFile) -> StoredTensor | None:
        for place in found.places:
            with contextlib.suppress(Damage):
                return read_record(file, place.start, place.length)
        return None

    def _scanned(self, file: OpenFile) -> Index | None:
        """Return an index that the event file itself tells."""
        places, first = [], None
        try:
            for start, length in records_of(file):
                try:
                    tensor = read_record(file, start, length)
                except Damage as damage:
                    self.lose(f"{self._files.event_file}:{start}", str(damage))
                    continue
                places.append(StoredAt(tensor.name, start, length))
                first = first or tensor
        except Damage as damage:
            self.lose(self._files.event_file, str(damage))
        if first is None or first.mode is None or first.mode_step is None:
            return None
        return Index(first.mode, first.mode_step, tuple(places), {}, {})

    def _convert_tensor(self, place: StoredAt, found: Index, file: OpenFile) -> None:
        try:
            tensor = self._checked(
                read_record(file, place.start, place.length), place, found
            )
            self._write(tensor, found.originals.get(place.name, ""))
        except (Damage, ConfigurationError) as error:
            self.lose(self._names.of(place.name).name, str(error))

    def _checked(
        self, tensor: StoredTensor, place: StoredAt, found: Index
    ) -> StoredTensor:
        """Compare what index and record say of the same tensor."""
        shape = found.shapes.get(place.name, tensor.value.shape)
        for what, said, is_said in (
            ("name", place.name, tensor.name),
            ("step", self._files.step, tensor.step),
            ("mode", found.mode.name, tensor.mode and tensor.mode.name),
            ("mode step", found.mode_step, tensor.mode_step),
            ("shape", shape, tensor.value.shape),
        ):
            if said != is_said:
                msg = f"its {what} is {said} by the index and {is_said} by the record"
                raise Damage(msg)
        return tensor

    def _write(self, stored: StoredTensor, original: str) -> None:
        self._wall_ns = max(self._wall_ns, stored.wall_ns)
        reduction = reduction_in(stored.name)
        if reduction is None:
            tensor = self._names.of(stored.name, original)
            self._writer.tensor(self._files.step, tensor, stored.value, stored.wall_ns)
            return
        if stored.value.size != 1:
            msg = f"a reduction has {stored.value.size} numbers"
            raise Damage(msg)
        of = self._names.of_reduced(reduction.tensor)
        names = [
            reduction_name(reduction.name, each, reduction.absolute)
            for each in (of.name, *of.aliases)
        ]
        number = Tensor(names[0], Role.SCALAR, tuple(names[1:]))
        self._writer.tensor(self._files.step, number, stored.value, stored.wall_ns)


def _contradicts(found: Index, tensor: StoredTensor) -> bool:
    return (found.mode, found.mode_step) != (tensor.mode, tensor.mode_step)
