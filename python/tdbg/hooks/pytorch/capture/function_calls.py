"""Functions of PyTorch that a training calls itself: activations, losses, dropout.

Many scripts call ``F.relu`` and ``F.nll_loss`` instead of modules.  The result of an
activation inside the forward of a root is an output, named after the module that
finished last before it.  A loss has predictions, labels and an output, wherever in a
step the program calls it: docs/steps.md, "Functions".  Calls of dropout only matter if
they drop in evaluation.

Thread safety: calls count only in the thread that called the root last.

Errors: none into the training but ``TrainingStopped``.
"""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn._reduction import legacy_get_string

from tdbg.capture.naming import UniqueNames
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.class_kinds import kind_of_class
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.activations import Activations, unit_range_of
from tdbg.hooks.pytorch.capture.losses import (
    CapturedLoss,
    is_call_of_function,
)
from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots, unscaled
from tdbg.hooks.pytorch.functions.call_sites import TRAINERS, CallSites
from tdbg.hooks.pytorch.functions.diverted import FunctionCall
from tdbg.hooks.pytorch.functions.followed_functions import followed
from tdbg.hooks.pytorch.model.call_context import is_in_transform
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["FunctionCalls"]


# Arguments of dropout before the one that says whether to drop.
_BEFORE_TRAINING = 2
# Classes of modules that are remembered for it, at most.
_MOST_DROPPING = 20

# Modules whose calls do not count: those of functions among each other, and those of
# PyTorch's modules, whose outputs are captured as such.
_OWN = frozenset({functional.__name__, "torch.nn.modules.activation"})
_LOSS_MODULES = "torch.nn.modules.loss"
_REDUCTIONS = ("mean", None)
# Operations that may lie between a loss and the number where a backward begins: the
# division by the number of micro-batches, a mean, a scaler.
_MOST_OPERATIONS = 16


class FunctionCalls:
    """Capture the functions that a training calls.

    Args:
        session: Where they go.
        mode: The present mode.
        names: The names of the hook, from which losses take theirs.
        losses: The captured losses of the hook; grows.

    Attributes:
        paths: The path of a module by the key of its calls, filled by the hooks of
            modules that report when these end.
        is_following: Whether it must hear of forwards.
        is_in_forward: Whether a forward is under way whose activations are followed.
        me: A reference to itself.
        follows_losses: Whether losses, or what they are given, are captured.
        thread: The thread that called the root last.
        dropping: Classes of modules whose dropout still drops in evaluation.
        not_dropping: Classes of modules in evaluation that tell dropout not to drop, in
            a forward with gradients.
        on_dropping: Called when there is another dropping class.
        saw_arguments: Called with the arguments of each captured loss.
    """

    def __init__(
        self,
        session: Session,
        mode: TorchMode,
        names: UniqueNames,
        losses: list[CapturedLoss],
    ) -> None:
        self.session = session
        self.paths: dict[object, str] = {}
        self._mode = mode
        self._names = names
        self._losses = losses
        self._root = ""
        self.me = weakref.ref(self)
        self.thread = 0
        self.is_following = self.is_in_forward = False
        self._activations: dict[tuple[str, str], Activations] = {}
        # By the name of the function and the place from which it is called.
        self._functions: dict[tuple[str, int], CapturedLoss] = {}
        self._sites: dict[str, CallSites] = {}
        self.follows_losses = False
        self._are_recorded = False  # Whether somebody else records the losses.
        self._backward: BackwardRoots | None = None
        self._backward_sites = CallSites(mode.now, TRAINERS)
        # The losses since the last backward, and those that it did not begin at, by the
        # numbers of their autograd nodes.
        self._nodes: dict[int, CapturedLoss] = {}
        self._waiting: dict[int, CapturedLoss] = {}
        self._may_be_followed = False
        self.dropping: tuple[str, ...] = ()
        self.not_dropping: frozenset[str] = frozenset()
        self.on_dropping: Callable[[], None] | None = None
        self.saw_arguments: Callable[[Any], None] | None = None
        session.listen(close=self.remove, rest=self.remove, counting=self._rest)
        self.refresh()

    def refresh(self) -> None:
        """Follow what the collections ask for by now."""
        if self.session.may_capture(Role.OUTPUT):
            self.is_following = True
            followed.follow_activations(self)

    def follow_losses(self) -> None:
        """Capture losses and the numbers where backwards begin; watch dropout."""
        self.is_following = self.follows_losses = True
        followed.follow_losses(self)
        counter = self.session.step_counter
        self._backward = BackwardRoots(self.backward_begins, counter)

    def follow_arguments(self) -> None:
        """Capture what losses are given; watch dropout.  Others record the losses."""
        self.is_following = self.follows_losses = self._are_recorded = True
        followed.follow_losses(self)

    def remove(self) -> None:
        """Follow nothing any longer."""
        followed.remove(self)
        if self._backward is not None:
            self._backward.remove()
            self._backward = None

    # ---- told by roots -------------------------------------------------------

    def forward_begins(self, root: str, mode: ModeKeys) -> None:
        """Take calls of functions from now on: a root of this training is called.

        Args:
            root: The name of the root.
            mode: The mode of the call.
        """
        self._root = root
        self.thread = threading.get_ident()
        if mode in TRAINING:
            self._may_be_followed = True
            self._waiting.clear()
        followed.follow_dropout(mode not in TRAINING)
        self.is_in_forward = self.session.takes_activations
        if followed.is_on or self.is_in_forward or followed.latest is not self.me:
            followed.forward_begins(self)

    def forward_ends(self) -> None:
        """Note that the call of a root is over, perhaps inside that of another one."""
        if not self.session.depth:
            self.is_in_forward = False
            followed.forward_ends()

    def _rest(self) -> None:
        """Rest: nothing of the next forwards is requested."""
        self.is_in_forward = False
        if followed.is_on and followed.latest is self.me:
            followed.forward_begins(self)

    # ---- called by diverted functions ----------------------------------------

    def activation(self, call: FunctionCall) -> None:
        """Capture the result of an activation function."""
        session = self.session
        context = session.forward_context
        if context is None or threading.get_ident() != self.thread:
            return
        if isinstance(call.result, torch.Tensor) and not _is_of_a_module(call.caller):
            session.run(self._take_activation, context, call)

    def take_loss(self, call: FunctionCall) -> None:
        """Capture the arguments and the result of a loss; run by a session."""
        result, caller = call.result, call.caller
        if not isinstance(result, torch.Tensor):
            return
        mode, session = self._mode.of_loss(), self.session
        if mode in TRAINING and not (result.requires_grad and session.training):
            return  # A metric, a loss of another model, or one between two steps.
        if caller.f_globals.get("__name__") in _OWN:
            return
        if len(self._losses) != len(self._functions) and self._is_registered(caller):
            return
        key = self._key_of(call)
        capture = self._functions.get(key) or self._capture_of(key)
        if not session.idle.is_idle:
            capture.inputs.take((call.args, call.kwargs))
        if self._are_recorded:
            return
        capture.outputs.take(result, mode=mode)
        node = result.grad_fn  # As ``saw``, without a call.
        if node is not None:
            self._nodes[node._sequence_nr()] = capture

    def note_loss(self, call: FunctionCall) -> bool:
        """Note a loss of a step that is only counted; False: the step must be seen.

        It takes the place of ``take_loss`` for a number of the CPU whose loss was
        captured before.
        """
        result, session = call.result, self.session
        if (
            type(result) is not torch.Tensor
            or result.dtype is not torch.float32
            or not (result.requires_grad and result.is_cpu)
            or result.dim()
            or is_in_transform()
        ):
            return False
        start_ns = time.perf_counter_ns()
        capture = None
        if len(self._losses) == len(self._functions):
            capture = self._functions.get(self._key_of(call))
        node, step_plan = result.grad_fn, session.noted_plan
        if capture is None or node is None or step_plan is None:
            return False
        if self._are_recorded:
            return True
        outputs = capture.outputs
        choice = outputs.single(step_plan)
        if choice.entries:
            entry, flags = choice.entries[0], choice.requested[0]
            if not session.note_loss(outputs.key, entry, flags, result.item()):
                return False
        self._nodes[node._sequence_nr()] = capture
        session.spend(time.perf_counter_ns() - start_ns)
        return True

    def take_dropout(self, call: FunctionCall) -> None:
        """Note the class of a module that calls dropout in evaluation."""
        is_said = "training" in call.kwargs or len(call.args) > _BEFORE_TRAINING
        if is_said and not torch.is_grad_enabled():
            return  # An explicit argument is meant.
        # The first argument, whatever its name.
        names = call.caller.f_code.co_varnames[: call.caller.f_code.co_argcount]
        module = call.caller.f_locals.get(names[0]) if names else None
        if not isinstance(module, nn.Module) or module.training:
            return
        name = class_name(module)
        if is_said:
            self.not_dropping |= {name}
        elif name not in self.dropping and len(self.dropping) < _MOST_DROPPING:
            self.dropping += (name,)
            if self.on_dropping is not None:
                self.on_dropping()

    # ---- inside --------------------------------------------------------------

    def _take_activation(self, context: StepContext, call: FunctionCall) -> None:
        path, name = self._latest_path(context), call.name
        found = self._activations.get((path, name))
        if found is None:
            kind = kind_of_class(name)
            found = self._activations[(path, name)] = Activations(
                self.session,
                self._mode.now,
                f"{path}_{name}",
                Role.OUTPUT,
                classes=frozenset({name} | ({kind} if kind else set())),
                units=unit_range_of(name, call.args[1:], call.kwargs),
            )
        found.take(call.result)

    def _key_of(self, call: FunctionCall) -> tuple[str, int]:
        """Return the name of a loss, and the number of the place that calls it."""
        name, caller = call.name, call.caller
        if caller.f_globals.get("__name__") == _LOSS_MODULES:
            name = type(caller.f_locals.get("self")).__name__
        elif call.kwargs or len(call.args) > 2:
            reduction = _reduction(call)
            name = name if reduction in _REDUCTIONS else f"{name}_{reduction}"
        sites = self._sites.get(name)
        if sites is None:
            sites = self._sites[name] = CallSites(self._mode.of_loss)
        return name, sites.number(caller)

    def _latest_path(self, context: StepContext) -> str:
        """Return the path of the module that finished last here, or the root."""
        for key in reversed(context.calls):
            path = self.paths.get(key)
            if path is not None:
                return path
        return self._root

    def saw(self, capture: CapturedLoss, result: Any) -> None:
        """Note the result of a loss, to know a backward that begins there."""
        node = getattr(result, "grad_fn", None)
        if node is not None:
            self._nodes[node._sequence_nr()] = capture

    def _capture_of(self, key: tuple[str, int]) -> CapturedLoss:
        """Return the capture of an unregistered loss, perhaps of one that is gone."""
        name, _ = key
        for each in self._losses:
            if each.class_name == name and each.is_gone:
                self._functions[key] = each
                return each
        kind = kind_of_class(name) or kind_of_class(name.rpartition("_")[0])
        capture = CapturedLoss(
            self.session, self._names.take(name), self._mode.of_loss, name, kind
        )
        capture.inputs.saw = self.saw_arguments
        self._functions[key] = capture
        self._losses.append(capture)
        return capture

    def _is_registered(self, frame: types.FrameType | None) -> bool:
        """Return whether a registered loss is being called."""
        registered = {id(each.module) for each in self._losses if not each.is_gone}
        code = nn.Module._call_impl.__code__
        while frame is not None:
            if is_call_of_function(frame):
                return True
            if frame.f_code is code and id(frame.f_locals.get("self")) in registered:
                return True
            frame = frame.f_back
        return False

    def backward_begins(self, root: torch.Tensor) -> None:
        """Record the number where a backward begins, once for a forward.

        It is not recorded if it is one of the captured losses; it may be their total.
        If several optimizers train, backwards from other places have other losses.
        """
        if self._are_recorded:
            return
        nodes, self._nodes = self._nodes, {}
        node = root.grad_fn  # Nearly always the node of the only loss.
        if self._waiting:
            self._note_begun(_begun_at(node, self._waiting | nodes))
        may_be_followed, self._may_be_followed = self._may_be_followed, False
        if not may_be_followed and not self.session.is_noted:
            return
        if followed.latest is not self.me:
            return
        # A loss that was registered may have been called by a compiled graph.
        is_unseen = not nodes and len(self._losses) > len(self._functions)
        begun = _begun_at(node, nodes)
        if begun is None or not begun.is_begun:
            self._note_begun(begun)
        if len(nodes) > 1:
            self._note_idle(nodes)
        if not is_unseen and begun is not None:
            return
        self._record_root(root)

    def _record_root(self, root: torch.Tensor) -> None:
        session, name = self.session, "loss_output_0"
        if len(session.optimizers) > 1:
            n_others = self._backward_sites.number(sys._getframe(1))
            name = f"loss_{n_others + 1}_output_0" if n_others else name
        session.run(session.record, self._mode.now(), name, Role.LOSS, unscaled(root))

    def _note_begun(self, loss: CapturedLoss | None) -> None:
        """Note that a backward begins at a loss; None: perhaps at a sum of any."""
        for each in self._losses if loss is None else [loss]:
            each.is_begun = True

    def _note_idle(self, nodes: Mapping[int, CapturedLoss]) -> None:
        """Note which losses a backward has not begun at."""
        for number, each in nodes.items():
            if not each.is_begun:
                self._waiting[number] = each
                each.n_idle += 1


def _is_of_a_module(caller: types.FrameType) -> bool:
    """Return whether a module's output is the result of the function.

    This is so for a module without others inside and without parameters.
    """
    if caller.f_globals.get("__name__") in _OWN:
        return True
    if caller.f_code.co_name != "forward":
        return False
    module = caller.f_locals.get("self")
    return isinstance(module, nn.Module) and not (module._modules or module._parameters)


def _reduction(call: FunctionCall) -> Any:
    """Return how a loss was asked to reduce its parts."""
    given = call.kwargs.get("reduction")
    # Older programs pass these instead.
    average, reduces = (call.kwargs.get(name) for name in ("size_average", "reduce"))
    if isinstance(average, bool) or isinstance(reduces, bool):
        return legacy_get_string(average, reduces, emit_warning=False)
    if given is None and len(call.args) > 2:
        given = next((each for each in call.args[2:] if isinstance(each, str)), None)
    return given


def _begun_at(node: Any, losses: Mapping[int, CapturedLoss]) -> CapturedLoss | None:
    """Return the loss that a node is, or only scales or averages; None: no such one."""
    for _ in range(_MOST_OPERATIONS):
        if node is None or not losses:
            return None
        if (found := losses.get(node._sequence_nr())) is not None:
            return found
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return None
