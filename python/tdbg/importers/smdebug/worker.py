"""Writes what one worker of smdebug saved as the run of one rank.

Thread safety: none.

Errors: ``StorageError`` where the run cannot be written.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Capture
from tdbg.config.collections import Role
from tdbg.errors import StorageError
from tdbg.importers.smdebug.names import Tensor
from tdbg.modes import ModeKeys
from tdbg.run.directory import Run
from tdbg.run.refused import Refused
from tdbg.run.schema import EventKind, stored_name

__all__ = ["WorkerWriter", "put_back"]

# The commit page of a writer that closed while the training may go on, under a name
# by which no reader takes it for the end.
_PAGE, _ASIDE = "COMMIT", "COMMIT.aside"
_MIN_QUEUE_BYTES = 64 << 20
_CLOSE_SECONDS = 600.0
_NAME_IS_SHORTENED = 1
_INFO, _WARNING = 1, 2
# So many tensors are named of which something was lost; the rest is counted.
MOST_NAMED = 1000


class WorkerWriter:
    """A writer of a run, which begins with the first step that it is given.

    Args:
        run: The run.
        rank: The rank to write as.
        attempt: Identity of the training, the same for all of its workers.
        configuration: What the run says of the training, or of this worker.
    """

    def __init__(
        self, run: Run, rank: int, attempt: bytes, configuration: dict[str, Any]
    ) -> None:
        self.rank = rank
        self._run = run
        self._attempt = attempt
        self._configuration = configuration
        self._capture: Capture | None = None
        self._queue_bytes = _MIN_QUEUE_BYTES
        self._ids: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._lost: dict[str, Refused] = {}
        self._told: dict[str, Refused] = {}
        self._collections: dict[str, Any] = {}

    def make_room(self, n_bytes: int) -> None:
        """See to it that tensors of so many bytes fit into the queue.

        Called between steps: a writer that replaces another one begins with a step.
        """
        needed = 4 * n_bytes
        if needed > self._queue_bytes:
            self._queue_bytes = needed
            self.close(has_ended=self._capture is not None)

    def tensor(
        self, step: int, tensor: Tensor, value: NDArray[Any], wall_ns: int = 0
    ) -> None:
        """Write a tensor: its statistics and its values, or one number.

        Raises:
            ConfigurationError: If a run cannot hold it.
        """
        is_number = value.dtype.kind in "biuf" or value.dtype.name == "bfloat16"
        if tensor.role is Role.SCALAR:
            if value.size == 1 and is_number:
                number = self._define(tensor, None, ())
                self._opened().scalar(step, number, float(value.item()), wall_ns)
                return
            tensor = tensor._replace(role=Role.OTHER)
        value = np.ascontiguousarray(value).reshape(value.shape)
        number = self._define(tensor, value.dtype, value.shape)
        capture, pointer = self._opened(), value.ctypes.data
        if is_number:
            capture.statistics(step, [number], [pointer])
        capture.values(step, number, pointer)

    def lose(self, step: int, name: str, reason: str) -> None:
        """Count a tensor of a step that cannot be read, and say why."""
        self._opened().refuse(step)
        known = self._lost.get(name)
        if known is not None:
            self._lost[name] = Refused(
                name, known.reason, known.records + 1, known.step
            )
        elif len(self._lost) < MOST_NAMED:
            self._lost[name] = Refused(name, reason, 1, step)

    def end_step(
        self, step: int, mode: ModeKeys, mode_step: int, wall_ns: int, flags: int = 0
    ) -> None:
        """Close a step, at the time at which its last tensor was written."""
        self._opened().end_step(
            step, mode.value, mode_step, flags=flags, wall_ns=wall_ns
        )

    def describe(self, collections: dict[str, Any]) -> None:
        """Write which collections there are, if that is news."""
        if collections != self._collections and self._capture is not None:
            self._collections = collections
            self._event(EventKind.COLLECTIONS, -1, {"collections": collections})

    def flush(self) -> None:
        """Make everything written visible to readers.

        Raises:
            StorageError: If not all of it could be stored.
        """
        if self._capture is None:
            return
        for name, lost in self._lost.items():
            if self._told.get(name) != lost:
                self._told[name] = lost
                self._event(EventKind.MESSAGE, lost.step, lost.to_json(), _WARNING)
        self._capture.flush()
        if self._capture.n_lost:
            reasons = ", ".join(sorted(self._capture.losses()))
            msg = (
                f"{self._run.path}: {self._capture.n_lost} records could not be "
                f"stored ({reasons}); make room on the disk and import again"
            )
            raise StorageError(msg, file=str(self._run.path), kind="io")

    def close(self, *, has_ended: bool) -> None:
        """End the writer; nothing more comes if the training *has_ended*.

        Without that the run does not say that the training has ended, nor that it
        goes on: nobody knows.
        """
        if self._capture is None and has_ended:
            self._opened()  # Somebody must say that it has ended.
        capture, self._capture = self._capture, None
        self._ids.clear()
        self._collections = {}
        if capture is None:
            return
        folder = Path(capture.directory)
        if not capture.close(_CLOSE_SECONDS):
            msg = f"{folder}: not everything could be stored"
            raise StorageError(msg, file=str(folder), kind="io")
        if not has_ended:
            with contextlib.suppress(FileNotFoundError):
                (folder / _PAGE).rename(folder / _ASIDE)

    def _opened(self) -> Capture:
        if self._capture is None:
            self._capture = Capture(
                str(self._run.path),
                run_uuid=self._run.uuid,
                attempt_uuid=self._attempt,
                role="train",
                rank=self.rank,
                world_size=int(self._configuration["world_size"]),
                queue_bytes=self._queue_bytes,
            )
            self._event(EventKind.CONFIGURATION, -1, self._configuration)
        return self._capture

    def _define(
        self, tensor: Tensor, dtype: np.dtype[Any] | None, shape: tuple[int, ...]
    ) -> int:
        element = "" if dtype is None else dtype.name
        if dtype is not None and dtype.kind == "U":
            element = dtype.str
        key = tensor.name, element, shape
        number = self._ids.get(key)
        if number is None:
            short = stored_name(tensor.name)
            number = self._ids[key] = self._opened().define(
                short,
                int(tensor.role),
                element,
                shape,
                item_size=0 if dtype is None else dtype.itemsize,
                flags=0 if short == tensor.name else _NAME_IS_SHORTENED,
                aliases=[stored_name(each) for each in tensor.aliases],
            )
        return number

    def _event(
        self, kind: EventKind, step: int, content: dict[str, Any], severity: int = _INFO
    ) -> None:
        data = json.dumps(content).encode()
        if self._capture is not None:
            self._capture.event(step, int(kind), severity, data)


def put_back(run: Run) -> None:
    """Let writers that closed count as closed again: another one goes on."""
    for page in run.path.glob(f"w/*/{_ASIDE}"):
        with contextlib.suppress(FileNotFoundError):
            page.rename(page.with_name(_PAGE))
