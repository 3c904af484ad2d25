"""Registered modules (roots): report their forwards, and capture all that is inside.

Thread safety: the training's thread.  Errors: none but ``TrainingStopped``.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import compiler, nn
from torch._C import _current_graph_task_id
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from tdbg.capture.counted_steps import StepEvent
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.steps import Step
from tdbg.hooks.pytorch.capture.buffers import BufferTable
from tdbg.hooks.pytorch.capture.function_calls import FunctionCalls
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable
from tdbg.hooks.pytorch.capture.submodules import SubmoduleHooks
from tdbg.hooks.pytorch.checks.data.input_statistics import InputStatistics
from tdbg.hooks.pytorch.compile.graph_calls import new_target, report_call
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.model.call_context import NOT_IN_BACKWARD
from tdbg.hooks.pytorch.model.callbacks import Callback
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import (
    IS_REPLICA,
    SEARCH_INTERVAL,
    begin_replica,
    end_replica,
    wrapped_parts,
)
from tdbg.modes import TRAIN, TRAINING

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.data.evaluated_outputs import EvaluatedOutputs
    from tdbg.hooks.pytorch.checks.probes.probe_batch import FirstBatches
    from tdbg.profiler import Fingerprints

__all__ = [
    "Additions",
    "Begin",
    "End",
    "ModuleCapture",
    "keywords_of",
    "registered_session",
]

# Modules without a forward: a program calls what they contain.
_CONTAINERS = (nn.ModuleDict, nn.ModuleList)


class Additions:
    """Notice that the program adds a module or a parameter inside a root.

    One that replaces another keeps its name and does not count.

    Args:
        root: The root; not kept alive.
        noticed: A method to call for each addition; its object is not kept alive.

    Attributes:
        has_any: Whether anything was added since the last ``scan``.
    """

    def __init__(
        self, root: weakref.ref[nn.Module], noticed: Callable[[], None]
    ) -> None:
        self._root = root
        self._noticed = weakref.WeakMethod(noticed)
        self._known: set[int] = set()
        self.has_any = False
        self.scan()
        # The hook is global: it must not keep this training alive.
        me = weakref.ref(self)

        def added(parent: nn.Module, _: str, __: Any) -> None:
            additions = me()
            if additions is not None and id(parent) in additions._known:
                additions.has_any = True
                noticed = additions._noticed()
                if noticed is not None:
                    noticed()

        def added_parameter(parent: nn.Module, name: str, _: Any) -> None:
            if parent._parameters.get(name) is None:
                added(parent, name, None)

        self._handles: list[Any] = [
            register_module_module_registration_hook(added),
            register_module_parameter_registration_hook(added_parameter),
        ]
        # Nor does it outlast a training that nobody closes.
        weakref.finalize(self, remove_all, self._handles).atexit = False

    def scan(self) -> None:
        """Remember what is inside now."""
        root = self._root()
        self.has_any = False
        self._known = set() if root is None else {id(each) for each in root.modules()}

    def remove(self) -> None:
        """Take the hooks off."""
        remove_all(self._handles)


def remove_all(handles: list[Any]) -> None:
    """Remove all these hooks."""
    for handle in handles:
        handle.remove()


class Begin(Callback):
    """The hook before the call of a root."""

    __slots__ = ("module_capture", "target")
    puts_back = True

    def __init__(self, session: Session, module_capture: ModuleCapture) -> None:
        super().__init__(session)
        self.module_capture = module_capture
        self.target = new_target(self)

    def __call__(self, module: Any, args: Any = (), kwargs: Any = None) -> None:
        """Begin the call of the root; leave a call while traced."""
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, None)
        else:
            session = self.session
            session.run(self.module_capture.begin, module)
            session.clock.add_batch(args, kwargs)
            inputs = self.module_capture.inputs
            if inputs.takes[bool(module.training)]:
                session.run(inputs.take, module, args)
            if session.fingerprints is not None:
                session.run(self.module_capture.take_samples, args, kwargs)
            batches = self.module_capture.batches
            if batches is not None and batches.is_open:
                batches.note_call(module, self.module_capture.name, args, kwargs)

    def called(self, *_: Any) -> None:
        """Handle a call from a compiled graph."""
        module = self.module_capture.module
        if module is not None:
            self(module)


class End(Begin):
    """The hook after the call of a root."""

    __slots__ = ()
    puts_back = False

    def __call__(self, module: Any, *given: Any) -> None:
        """End the call of the root; leave a call while traced."""
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, None)
        else:
            capture = self.module_capture
            self.session.run(capture.end, module)
            evaluated = capture.evaluated
            if evaluated is not None and evaluated.is_open and given:
                is_training = module.training and torch.is_grad_enabled()
                if evaluated.is_learning or not is_training:
                    note = evaluated.note_output
                    self.session.run(note, module, capture.name, given[-1])


class _BeginPart(Callback):
    """Reports that a module with most of a root is called by itself."""

    __slots__ = ("module_capture",)
    puts_back = True

    def __init__(self, session: Session, module_capture: ModuleCapture) -> None:
        super().__init__(session)
        self.module_capture = module_capture

    def __call__(self, module: Any, *_: Any) -> None:
        session = self.session
        if not (is_compiling() or session.depth):
            begin = self.module_capture.begin
            session.run(functools.partial(begin, is_part=True), module)


class _EndPart(_BeginPart):
    __slots__ = ()
    puts_back = False

    def __call__(self, module: Any, *_: Any) -> None:
        if not is_compiling() and self.module_capture.part is module:
            self.session.run(self.module_capture.end, module)


never_compiled(Begin.__call__, End.__call__, _BeginPart.__call__, _EndPart.__call__)


class ModuleCapture:
    """A registered module: reports its calls, and captures all that is inside.

    Args:
        session: Where events and tensors go.
        module: The root; not kept alive, unless it only contains others, since then
            nobody else may hold it.
        name: The beginning of the names of its own inputs and outputs.
        prefix: Stands before all names inside.
        mode: The present mode.
        before_training: Called before a forward in training begins.
        in_training: Called with the step when a forward has begun in a training that
            has no optimizer of PyTorch.
        in_evaluation: Called when a forward of evaluation has begun.
        functions: Captures the functions called inside; None: nothing does.
        batches: Hears of the arguments of calls; None: nothing does.
        evaluated: Hears of outputs; None: nothing does.

    Attributes:
        prefix: As it was given.
        batches: As it was given.
        evaluated: As it was given.
        part: The module inside that is being called by itself, if any.
        inputs: Compares those of evaluation with those of training.
        begins: The event that a call of the root begins.
        ends: The event that a call of the root has ended.
    """

    def __init__(
        self,
        session: Session,
        module: nn.Module,
        name: str,
        prefix: str,
        mode: TorchMode,
        before_training: Callable[[], None],
        in_training: Callable[[StepContext], None],
        in_evaluation: Callable[[], None],
        functions: FunctionCalls | None = None,
        batches: FirstBatches | None = None,
        evaluated: EvaluatedOutputs | None = None,
    ) -> None:
        self._session = session
        self.batches = batches
        self.evaluated = evaluated
        self._module = weakref.ref(module)
        self._container = module if isinstance(module, _CONTAINERS) else None
        self._mode = mode
        self._name = name
        self.prefix = prefix
        self._before_training = before_training
        self._in_training = in_training
        self._in_evaluation = in_evaluation
        self._functions = functions
        # The exception that was under way when each open call began.
        self._calls: list[BaseException | None] = []
        self._countdown = SEARCH_INTERVAL
        self._additions = Additions(self._module, session.see)
        before = session.naming.before_parameters(name, prefix)
        self.parameters = ParameterTable(session, module, before)
        self.buffers = BufferTable(session, module, before)
        self._inside = SubmoduleHooks(
            session,
            self._module,
            name,
            prefix,
            mode,
            None if functions is None else functions.paths,
        )
        self._begin_handle = module.register_forward_pre_hook(
            Begin(session, self), prepend=True, with_kwargs=True
        )
        self._end_handle: Any = None
        self.part: nn.Module | None = None
        self.inputs = InputStatistics(session, name)
        # The step of the call that has just begun.
        self._step: Step | None = None
        self.begins = StepEvent(self._repeat_begin)
        self.ends = StepEvent(self._repeat_end)
        self._part_handles: list[Any] = []
        self.refresh()

    @property
    def name(self) -> str:
        """The beginning of the names of the root's own inputs and outputs."""
        return self._name

    @property
    def n_unseen(self) -> int:
        """The number of modules that report nothing: compiled before they had hooks."""
        return self._inside.n_unseen

    @property
    def made_inputs(self) -> frozenset[str]:
        """Names of inputs of the root that another model made."""
        return self._inside.made_inputs

    @property
    def module(self) -> nn.Module | None:
        """The root, if it lives."""
        return self._module()

    def refresh(self) -> None:
        """Hook the modules inside as far as the collections ask for it now."""
        module = self._module()
        if module is None:
            return
        self.parameters.refresh()
        self.buffers.refresh()
        if self._functions is not None:
            self._functions.refresh()
        self._inside.refresh()
        # Last of all, so that the root's own output still belongs to its forward.
        if self._end_handle is not None:
            self._end_handle.remove()
        self._end_handle = module.register_forward_hook(
            End(self._session, self), always_call=True
        )
        self._hook_parts(module)

    def _hook_parts(self, root: nn.Module) -> None:
        """Hook the modules that a root wraps: evaluation calls them by themselves."""
        remove_all(self._part_handles)
        begin, end = _BeginPart(self._session, self), _EndPart(self._session, self)
        self._part_handles = [
            handle
            for part in wrapped_parts(root)
            for handle in (
                part.register_forward_pre_hook(begin, prepend=True),
                part.register_forward_hook(end),
            )
        ]

    def _repeat_begin(self) -> None:
        module = self._module()
        if module is not None:
            self.begin(module, is_counted=True)

    def _repeat_end(self) -> None:
        module = self._module()
        if module is not None:
            self.end(module, is_counted=True)

    def begin(
        self, module: nn.Module, *, is_part: bool = False, is_counted: bool = False
    ) -> None:
        """Begin a forward: the root, or a module that it wraps, is about to be called.

        Args:
            module: The module.
            is_part: Whether it is called by itself, not by the root.
            is_counted: Whether the call has already happened, in a training step that
                was only counted.
        """
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return  # A checkpointed forward that is recomputed.
        session, self._step = self._session, None
        if IS_REPLICA in vars(module) and (
            is_part or not begin_replica(session, module, self.module)
        ):
            return
        if self._additions.has_any:
            self._search_again()
        if self._calls and len([*_calls_of(module)]) < 2:
            # An interrupt ended that call without its hooks.
            self._calls.clear()
            session.forward_lost()
        mode = TRAIN
        if not is_counted:
            mode = self._mode.of_part(module) if is_part else self._mode.now()
        is_training = mode in TRAINING
        if is_training:
            self._before_training()
        context = session.forward_begins(id(self), mode)
        if context is not None and session.depth == 1:
            self._step = context.step
        functions = self._functions
        if functions is not None and functions.is_following and session.depth == 1:
            functions.forward_begins(self._name, mode)
        if not (is_training and session.optimizers):
            self._tell(context, is_training=is_training)
        self._calls.append(None if is_counted else sys.exception())
        self.part = module if is_part else None
        session.add_event(self.begins)
        if context is None or context.step_plan.is_light or not context.takes:
            return
        self._capture(context, optimizes=bool(is_training and session.optimizers))

    def take_samples(self, args: Any, kwargs: Any) -> None:
        """Hash what the root is called with, if no other root calls it."""
        prints: Fingerprints | None = self._session.fingerprints
        step, self._step = self._step, None
        if prints is not None and step is not None:
            given = args, kwargs
            prints.take_inputs(self.begins, self._name, step.number, step.mode, given)

    def _capture(self, context: StepContext, *, optimizes: bool) -> None:
        """Capture parameters as the forward begins, or begin to copy them."""
        if context.step_plan.takes_activations:
            self._count_capture()
        # Without an optimizer nothing reports that the weights are about to change.
        if optimizes:
            self.parameters.begin_values(context)
        else:
            self.parameters.capture(context, gradients=False)
            self.buffers.capture(context)

    def _tell(self, context: StepContext | None, *, is_training: bool) -> None:
        """Report a forward of evaluation, or of training without an optimizer."""
        if not is_training:
            self._in_evaluation()
        if context is None:
            return
        if is_training:
            self._in_training(context)
        else:
            context.step.may_train = self._mode.may_train()

    def begin_late(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin the call under way, for which the hooks came too late."""
        self._session.run(self.begin, module)
        self._inside.take_root_input(args, kwargs)

    def update(self) -> None:
        """Search the root again if something was added."""
        if self._additions.has_any:
            self._search_again()

    def optimizer_steps(
        self,
        context: StepContext,
        scale: float | torch.Tensor,
        only: AbstractSet[int] | None,
        held: Callable[[], AbstractSet[int]],
    ) -> None:
        """Capture parameters and gradients, and buffers if all parameters are taken.

        Args:
            context: The step.
            scale: The scale of the gradients; see ``ParameterTable.capture``.
            only: Ids of the parameters to take; None takes all.
            held: Returns the ids of parameters that optimizers hold.
        """
        self.update()
        self.parameters.capture(
            context, gradients=True, scale=scale, only=only, held=held
        )
        if only is None:
            self.buffers.capture(context)

    def end(self, module: nn.Module, *, is_counted: bool = False) -> None:
        """End the forward, perhaps by an exception; *is_counted* as for ``begin``."""
        session = self._session
        if IS_REPLICA in vars(module) and not end_replica(session, module, self.module):
            return
        if not self._calls:
            return  # It never began: a stop, or a recomputation.
        before = self._calls.pop()
        error = None if is_counted else sys.exception()
        has_failed = error is not None and error is not before
        if session.takes_activations and not has_failed and self.part is None:
            self._inside.forward_ends()
        self.part = None
        session.forward_ends(has_failed)
        session.add_event(self.ends)
        functions = self._functions
        if functions is not None and functions.is_in_forward:
            functions.forward_ends()

    def remove(self) -> None:
        """Take all hooks off."""
        self._container = None
        self._inside.remove()
        self._additions.remove()
        remove_all([self._begin_handle, self._end_handle, *self._part_handles])
        self.parameters.fence(is_last=True)

    def _count_capture(self) -> None:
        """Search again now and then: some additions go unnoticed."""
        self._countdown -= 1
        if self._countdown <= 0:
            self._search_again()

    def _search_again(self) -> None:
        self._countdown = SEARCH_INTERVAL
        self._additions.scan()
        self._inside.search_again()
        root = self._module()
        if root is not None:
            self._hook_parts(root)
        self.parameters.search_again()
        self.buffers.search_again()


def registered_session(module: nn.Module) -> Session | None:
    """Return the session that has this module registered, if any."""
    for callback in module._forward_pre_hooks.values():
        if isinstance(callback, Begin):
            return callback.session
    return None


def keywords_of(module: nn.Module) -> dict[str, Any]:
    """Return the keyword arguments of the module's latest call under way.

    A hook of all modules does not get them.
    """
    call = next(_calls_of(module), None)
    kwargs = None if call is None else call.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


def _calls_of(module: nn.Module) -> Iterator[FrameType]:
    """Yield the frames of the module's open calls in this thread, latest first."""
    code = nn.Module._call_impl.__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is module:
            yield frame
        frame = frame.f_back
