"""The part of a session that captures tensors, and says which ones it captures.

Thread safety: the training's thread.

Errors: a tensor that cannot be captured is refused and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Collection as AbstractCollection
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tdbg.capture.adapter import AsyncResult, DeviceArray, UnitSummarySpec
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.modes import ModeKeys

if TYPE_CHECKING:
    from tdbg._core import ModuleCallCapture, ParameterCapture, UpdateCapture

__all__ = ["SessionTensors"]


class SessionTensors:
    """The part of a session that captures tensors and numbers.

    Args:
        policy: Says what is captured.
        recorder: Captures it.

    Attributes:
        collections: The collections of the hook; changes hold from the next step on.
        naming: The scheme of names.
    """

    def __init__(self, policy: Policy, recorder: Recorder) -> None:
        self.policy = policy
        self.recorder = recorder
        self.collections = policy.registry
        self.naming = policy.naming

    # ---- what is captured ----------------------------------------------------

    def may_capture(
        self, role: Role, classes: AbstractCollection[str] | None = None
    ) -> bool:
        """Whether a tensor of that role may be captured at some step.

        Args:
            role: The role.
            classes: Those of the module that it belongs to, and its kind; None: any
                module.
        """
        return self.policy.may_capture(role, classes)

    def captures(
        self, name: str, role: Role, classes: AbstractCollection[str] = ()
    ) -> bool:
        """Whether the tensor of this name may be captured at some step.

        Args:
            name: The tensor's name.
            role: The tensor's role.
            classes: Those of the module that it belongs to, and its kind.
        """
        return self.policy.captures(name, role, classes)

    def step_plan(self, mode: ModeKeys, mode_step: int) -> StepPlan:
        """Return what a step of *mode* captures, by its number in that mode."""
        return self.policy.step_plan(mode, mode_step)

    def scalars_due(self, mode: ModeKeys, mode_step: int) -> bool | None:
        """Whether all numbers of optimizers are due, or changed ones; None: none is."""
        return self.policy.scalars_due(mode, mode_step)

    # ---- tensors and numbers -------------------------------------------------

    def entry(
        self,
        name: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        unit_spec: UnitSummarySpec | None = None,
    ) -> TensorEntry:
        """Return the entry of a name, always the same one: ``Recorder.entry``."""
        return self.recorder.entry(name, role, aliases, classes, unit_spec)

    def take(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        tensors: Sequence[Any],
        flags: Sequence[int],
        call: int = 0,
        micro_batch: int = 0,
        scale: Any = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Capture tensors of the framework now: ``Recorder.take``."""
        self.recorder.take(
            context, entries, tensors, flags, call, micro_batch, scale, reuses=reuses
        )

    def take_unhandled(
        self, context: StepContext, requests: Iterable[tuple[TensorEntry, Any, int]]
    ) -> None:
        """Capture tensors that the core could not read: entries, tensors and flags."""
        self.recorder.take_unhandled(context, requests)

    def take_numbers(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        numbers: NDArray[Any],
        flags: Sequence[int],
    ) -> None:
        """Capture numbers now, each as a tensor: ``Recorder.take_numbers``."""
        self.recorder.take_numbers(context, entries, numbers, flags)

    def capture(
        self, context: StepContext, entry: TensorEntry, tensor: Any, call: int = 0
    ) -> None:
        """Capture one tensor, or where one lies (``TensorRef``), if it is due."""
        self.recorder.capture(context, entry, tensor, call)

    def refuse(
        self, context: StepContext, name: str, why: str, n_bytes: int = 0
    ) -> None:
        """Count a tensor that cannot be captured, as ``Recorder.refuse``."""
        self.recorder.refuse(context, name, why, n_bytes)

    def record_number(
        self, context: StepContext, name: str, value: float | DeviceArray | None
    ) -> None:
        """Record ``scalar/<name>``, now or when it has arrived; None is refused."""
        self.recorder.scalar(context, name, value)

    def note_data(self, context: StepContext) -> None:
        """Note that a step has data, even if it has ended."""
        context.note_data(self.recorder.pending)

    def expect(
        self,
        context: StepContext,
        result: AsyncResult,
        deliver: Callable[[], None],
        *,
        n_records: int = 1,
    ) -> None:
        """Keep a step from being complete until a result has arrived.

        Args:
            context: The step.
            result: Says when it has.
            deliver: Called then.
            n_records: How many records are lost if it never does.
        """
        self.recorder.pending.expect(context.step, result, deliver, n_records=n_records)

    def begin_values(
        self, context: StepContext, entries: Sequence[TensorEntry], tensors: list[Any]
    ) -> list[int]:
        """Begin to copy values on their devices: ``Recorder.begin_values``."""
        return self.recorder.begin_values(context, entries, tensors)

    def fence(self) -> None:
        """Let the devices wait for the copies that ``begin_values`` has begun."""
        self.recorder.fence()

    def make_call_capture(
        self, key: object, backward_id: Callable[[], int]
    ) -> ModuleCallCapture | None:
        """Make what captures the calls of one module: ``Recorder.calls_of``."""
        return self.recorder.calls_of(key, backward_id)

    def make_parameter_capture(
        self, parameters: Sequence[Any]
    ) -> ParameterCapture | None:
        """Make what captures parameters: ``Recorder.parameters``."""
        return self.recorder.parameters(parameters)

    def make_update_capture(self) -> UpdateCapture | None:
        """Make what captures the updates of one optimizer: ``Recorder.updates``."""
        return self.recorder.updates()
