"""The part of ``tdbg._core`` that captures tensors of Python, many in one call.

No module of its own: cpp/python_capture and cpp/bindings/bind_batch_capture.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from tdbg._core import Capture

class TensorEntry:
    """The name of a captured tensor with what all its definitions share.

    unit_summary is the name of its unit summary; "": it has none.
    """

    def __init__(
        self,
        name: str,
        role: int,
        aliases: Sequence[str] = (),
        unit_summary: str = "",
        global_shape: Sequence[int] = (),
        global_offset: Sequence[int] = (),
        placements: Sequence[tuple[int, int, int, int, int]] = (),
        *,
        low: float = ...,
        high: float = ...,
        rows_are_units: bool = False,
        units_last: bool = False,
    ) -> None: ...
    raw_limit: int
    """Largest value, in bytes, that the flag LIMITED_VALUES keeps."""
    @property
    def too_large(self) -> int:
        """Bytes of the largest value above the limit; 0: there was none."""

    def is_within_limit(self, n_bytes: int) -> bool:
        """Whether a value is within raw_limit; too_large notes it if it is not."""

class BatchCapture:
    """Captures arrays of NumPy, and tensors of types with DLPack's C exchange API."""

    def __init__(self, capture: Capture, types: tuple[type, ...]) -> None: ...
    @property
    def can_read(self) -> bool:
        """Whether any of the types has the API."""

    @property
    def n_repeated(self) -> int:
        """Rows copied because their memory had been reduced before."""

    @property
    def n_too_large(self) -> int:
        """Values above the limits of their entries."""

    @property
    def spent_ns(self) -> int:
        """Time spent in ModuleCallCapture.take."""

    @property
    def devices(self) -> set[int]:
        """CUDA devices that tensors were on."""

    def begin_forward(
        self, context: Any, calls: Any, request: Any, step: int, micro_batch: int
    ) -> None:
        """Let ModuleCallCapture capture until end_forward.  calls is a dict: number of
        calls by module.  Sets context.has_data."""

    def end_forward(self) -> None: ...
    def begin_values(
        self, step: int, entries: list[TensorEntry], tensors: list[Any]
    ) -> list[int]:
        """Start copying the values of tensors on a device with kernels.

        Returns their indices.  Until ``fence`` their memory must stay alive and
        unchanged.
        """

    def fence(self) -> None:
        """Make the devices' current streams wait for the copies started."""

    def take_numbers(
        self,
        step: int,
        entries: Sequence[TensorEntry],
        numbers: NDArray[Any],
        flags: Sequence[int],
    ) -> bool:
        """Capture the elements of an array of one dimension, each under its own name.

        Returns False, and captures nothing, if it cannot read the array.
        """

    def take(self, *arguments: Any) -> list[int] | None:
        """Capture tensors.  Returns the indices of those it cannot read, or None.

        By position: step, entries, tensors, flags (schema()["CaptureFlag"]), call,
        micro_batch, scale, reuses.  scale: a float, or a tensor of one float32 on a
        CUDA device that divides.  reuses: copy the row of memory that was reduced
        before in this step and micro-batch and not written since."""

class ModuleCallCapture:
    """Captures calls of a module; cpp/python_capture/module_call_capture.h."""

    def __init__(self, batch: BatchCapture, key: object, backward_id: Any) -> None: ...
    def prepare(
        self, request: Any, input: Any, input_flags: int, output: Any, output_flags: int
    ) -> None: ...
    def take(self, *arguments: Any) -> bool:
        """Capture a call: args, kwargs and output, None for those not at hand; False
        if nothing was captured, and nothing counted."""

class ParameterCapture:
    """Parameters with their gradients: cpp/python_capture/parameter_capture.h."""

    def __init__(self, batch: BatchCapture, parameters: Iterable[Any]) -> None: ...
    def take(self, step: int) -> list[tuple[int, Any]] | None: ...
    def found(self) -> list[int]: ...

class UpdateCapture:
    """What optimizers change: cpp/python_capture/update_capture.h."""

    def __init__(self, batch: BatchCapture) -> None: ...
    def begin(self, parameters: tuple[Any, ...]) -> list[int]: ...
    def copy(self) -> None: ...
    def end(
        self, step: int, entries: tuple[TensorEntry, ...], flags: tuple[int, ...],
        keeps_memory: bool,
    ) -> list[int]: ...  # fmt: skip
    def forget(self) -> None: ...
    @property
    def n_bytes(self) -> int: ...
