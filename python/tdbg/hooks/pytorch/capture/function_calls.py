"""Functions of PyTorch that a training calls itself: activations, losses, dropout.

Most scripts call ``F.relu`` and ``F.nll_loss``, where others have modules.  What an
activation answers inside the forward of a root is an output, named after the module
that finished last before it; a loss has predictions, labels and an output, wherever in
a step it is called.  docs/steps.md, "Functions".  Of dropout only calls count that
drop in evaluation.

Thread safety: calls of other threads than the one that called the root last are left
alone.

Errors: none into the training but ``TrainingStopped``, as of all hooks.
"""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn._reduction import legacy_get_string

from tdbg.capture.naming import UniqueNames
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.class_kinds import ACTIVATION_FUNCTIONS, kind_of_class
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.activations import Activations, unit_range_of
from tdbg.hooks.pytorch.capture.losses import (
    LossCapture,
    is_call_of_function,
)
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now
from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots, unscaled
from tdbg.hooks.pytorch.functions.call_sites import TRAINERS, CallSites
from tdbg.hooks.pytorch.functions.diverted import (
    DivertedCodes,
    FunctionCall,
    Listener,
    Place,
    code_of,
    place_of,
)
from tdbg.hooks.pytorch.model.call_context import is_in_transform
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["LOSS_FUNCTIONS", "FunctionCalls"]

LOSS_FUNCTIONS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
"""Those of ``torch.nn.functional`` that are captured as losses."""

# They drop unless they are told not to.
_DROPOUT_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
# Arguments of these before the one that says whether to drop.
_BEFORE_TRAINING = 2
# Classes of modules that are remembered for it, at most.
_MOST_DROPPING = 20

# What they call of each other is theirs; a module's output is captured as such.
_OWN = frozenset({functional.__name__, "torch.nn.modules.activation"})
_LOSS_MODULES = "torch.nn.modules.loss"
_REDUCTIONS = ("mean", None)
# A backward may begin behind so many operations of one tensor on a loss: the division
# by the number of micro-batches, a mean, a scaler.
_MOST_OPERATIONS = 16


class FunctionCalls:
    """Captures the functions that a training calls.

    Args:
        session: Where they go.
        mode: The present mode.
        names: Those of the hook; losses take theirs.
        losses: The captures of the hook's losses; grows.

    Attributes:
        paths: The path of a module by the key of its calls; filled by whoever hooks
            modules, whose ends these calls are.
        is_following: Whether it needs to know of forwards.
        is_in_forward: Whether a forward is under way whose activations are followed.
        me: A reference to itself.
        follows_losses: Whether losses are captured.
        thread: The thread that called the root last.
        dropping: Classes of modules in evaluation that call dropout without saying so.
        not_dropping: Classes of modules in evaluation that tell dropout not to drop, in
            a forward with gradients.
        on_dropping: Called when there is another one.
    """

    def __init__(
        self,
        session: Session,
        mode: TorchMode,
        names: UniqueNames,
        losses: list[LossCapture],
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
        self._functions: dict[tuple[str, int], LossCapture] = {}
        self._sites: dict[str, CallSites] = {}
        self.follows_losses = False
        self._backward: BackwardRoots | None = None
        self._backward_sites = CallSites(mode.now, TRAINERS)
        # Numbers of the autograd nodes of the losses since the last backward.
        self._nodes: set[int] = set()
        self._may_be_followed = False
        self.dropping: tuple[str, ...] = ()
        self.not_dropping: frozenset[str] = frozenset()
        self.on_dropping: Callable[[], None] | None = None
        session.on_close.append(self.remove)
        session.on_rest.append(self.remove)
        session.counted.on_begin.append(self._rest)
        self.refresh()

    def refresh(self) -> None:
        """Follow what the collections ask for by now."""
        if self.session.may_capture(Role.OUTPUT):
            self.is_following = True
            _diverted.follow_activations(self)

    def follow_losses(self) -> None:
        """Capture losses too, and what a backward begins at; watch dropout."""
        self.is_following = self.follows_losses = True
        _diverted.follow_losses(self)
        counter = self.session.counted.counter_of_core
        self._backward = BackwardRoots(self.backward_begins, counter)

    def remove(self) -> None:
        """Follow nothing any longer."""
        _diverted.remove(self)
        if self._backward is not None:
            self._backward.remove()
            self._backward = None

    # ---- told by roots -------------------------------------------------------

    def forward_begins(self, root: str, mode: ModeKeys) -> None:
        """A root is being called: from now on calls of functions are of this training.

        Args:
            root: Its name.
            mode: That of the call.
        """
        self._root = root
        self.thread = threading.get_ident()
        if mode in TRAINING:
            self._may_be_followed = True
        _diverted.follow_dropout(mode not in TRAINING)
        self.is_in_forward = self.session.takes_activations
        if _diverted.is_on or self.is_in_forward or _diverted.latest is not self.me:
            _diverted.forward_begins(self)

    def forward_ends(self) -> None:
        """The call of a root is over, perhaps inside that of another one."""
        if not self.session.machine.depth:
            self.is_in_forward = False
            _diverted.forward_ends()

    def _rest(self) -> None:
        """Nothing of the next forwards is requested."""
        self.is_in_forward = False
        if _diverted.is_on and _diverted.latest is self.me:
            _diverted.forward_begins(self)

    # ---- called by diverted functions ----------------------------------------

    def activation(self, call: FunctionCall) -> None:
        """An activation function was called, and has returned."""
        session = self.session
        context = session.forward_context
        if context is None or threading.get_ident() != self.thread:
            return
        if isinstance(call.result, torch.Tensor) and not _is_of_a_module(call.caller):
            session.run(self._take_activation, context, call)

    def take_loss(self, call: FunctionCall) -> None:
        """Capture what a loss function was given and has returned; run by a session."""
        result, caller = call.result, call.caller
        if not isinstance(result, torch.Tensor):
            return
        mode, machine = self._mode.of_loss(), self.session.machine
        if mode in TRAINING and not (result.requires_grad and machine.training):
            return  # A measure of it, or of another model, or between two steps.
        if caller.f_globals.get("__name__") in _OWN:
            return
        if len(self._losses) != len(self._functions) and self._is_registered(caller):
            return
        key = self._key_of(call)
        capture = self._functions.get(key) or self._capture_of(key)
        if not self.session.idle.is_idle:
            capture.inputs.take((call.args, call.kwargs))
        capture.outputs.take(result, mode=mode)
        node = result.grad_fn  # As ``saw``, without a call.
        if node is not None:
            self._nodes.add(node._sequence_nr())

    def note_loss(self, call: FunctionCall) -> bool:
        """Note a loss of a step that is counted; False: the step is to be seen.

        Called in the place of ``take_loss`` for what is a number of the processor,
        and was captured before.
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
        node, counted = result.grad_fn, session.counted
        if capture is None or node is None or counted.step_plan is None:
            return False
        outputs = capture.outputs
        choice = outputs.single(counted.step_plan)
        if choice.entries:
            entry, flags = choice.entries[0], choice.requested[0]
            if not counted.note(outputs.key, entry, flags, result.item()):
                return False
        self._nodes.add(node._sequence_nr())
        session.meter.total_ns += time.perf_counter_ns() - start_ns
        return True

    def take_dropout(self, call: FunctionCall) -> None:
        """Note who calls dropout in evaluation: without saying so, or to train."""
        is_said = "training" in call.kwargs or len(call.args) > _BEFORE_TRAINING
        if is_said and not torch.is_grad_enabled():
            return  # Whoever says so means it.
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
        """The name of a loss, and the number of the place from which it is called."""
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
        """The path of the module that finished last in this forward, or the root's."""
        for key in reversed(context.calls):
            path = self.paths.get(key)
            if path is not None:
                return path
        return self._root

    def saw(self, result: Any) -> None:
        """Note what a loss has returned: a backward that begins at it is known."""
        node = getattr(result, "grad_fn", None)
        if node is not None:
            self._nodes.add(node._sequence_nr())

    def _capture_of(self, key: tuple[str, int]) -> LossCapture:
        """The capture of a loss that nobody has registered; one that is gone, again."""
        name, _ = key
        for each in self._losses:
            if each.class_name == name and each.is_gone:
                self._functions[key] = each
                return each
        kind = kind_of_class(name) or kind_of_class(name.rpartition("_")[0])
        capture = LossCapture(
            self.session, self._names.take(name), self._mode.of_loss, name, kind
        )
        self._functions[key] = capture
        self._losses.append(capture)
        return capture

    def _is_registered(self, frame: types.FrameType | None) -> bool:
        """Whether a loss that was registered is being called."""
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
        """Record the number that a backward begins at, once for a forward.

        Unless it is one of the losses that were captured; of several it is the total.
        Where several optimizers train, those that begin elsewhere are other losses.
        """
        nodes, self._nodes = self._nodes, set()
        may_be_followed, self._may_be_followed = self._may_be_followed, False
        if not may_be_followed and not self.session.counted.counter.is_noted:
            return
        if _diverted.latest is not self.me:
            return
        # A loss that was registered may have been called by a compiled graph.
        is_unseen = not nodes and len(self._losses) > len(self._functions)
        node = root.grad_fn  # Nearly always that of the only loss.
        is_loss = node is not None and node._sequence_nr() in nodes
        if not is_unseen and (is_loss or _begins_at(node, nodes)):
            return
        session, name = self.session, "loss_output_0"
        if len(session.optimizers) > 1:
            n_others = self._backward_sites.number(sys._getframe(1))
            name = f"loss_{n_others + 1}_output_0" if n_others else name
        session.run(session.record, self._mode.now(), name, Role.LOSS, unscaled(root))


class _Activations(Listener):
    """On while a forward is under way in which outputs are captured."""

    def called(self, call: FunctionCall) -> None:
        """An activation function was called, and has returned."""
        calls = None if _diverted.latest is None else _diverted.latest()
        if calls is not None:
            calls.activation(call)


class _Losses(Listener):
    """Always on."""

    is_on = True

    def called(self, call: FunctionCall) -> None:
        """A loss function was called, and has returned."""
        calls = None if _diverted.latest is None else _diverted.latest()
        if calls is None or not calls.follows_losses:
            return
        counter = calls.session.counted.counter
        # Most steps that are only counted have no loss, and seldom come here.
        if counter.is_quiet or threading.get_ident() != calls.thread:
            return
        if not (counter.is_noted and calls.note_loss(call)):
            calls.session.run(calls.take_loss, call)


class _Dropout(Listener):
    """On while a forward is under way that evaluates."""

    def called(self, call: FunctionCall) -> None:
        """A dropout function was called, and has returned."""
        calls = None if _diverted.latest is None else _diverted.latest()
        if (
            calls is not None
            and calls.follows_losses
            and threading.get_ident() == calls.thread
        ):
            calls.session.run(calls.take_dropout, call)


class _Diverted:
    """The functions of this process that are diverted, and who follows them.

    Of several trainings calls are of the one whose root was called last.

    Attributes:
        latest: Refers to who follows now; None: nobody does.
        is_on: Whether the latest forward is one whose activations are followed.
    """

    def __init__(self) -> None:
        self.born = now()
        self._followers: weakref.WeakSet[FunctionCalls] = weakref.WeakSet()
        self.latest: weakref.ref[FunctionCalls] | None = None
        self.is_on = False
        self._activations, self._losses = _Activations(), _Losses()
        self._dropout = _Dropout()
        self._names: set[str] = set()
        self._activation_codes, self._dropout_codes = DivertedCodes(), DivertedCodes()
        self._loss_codes = DivertedCodes()  # They are always diverted.
        self._places: list[Place] = []
        self._has_places = False  # Whether builtins are replaced.
        self._is_compiled = False

    def follow_activations(self, calls: FunctionCalls) -> None:
        """Divert activation functions in forwards that are captured."""
        self._followers.add(calls)
        for name in ACTIVATION_FUNCTIONS:
            for owner in (functional, torch):
                if self._is_new(owner, name):
                    code = code_of(owner, name, self._activations)
                    place = place_of(owner, name, self._activations)
                    if code is not None:
                        self._activation_codes.add(code)
                    elif place is not None:
                        self._places.append(place)

    def follow_losses(self, calls: FunctionCalls) -> None:
        """Divert losses, and dropout."""
        self._followers.add(calls)
        for names, listener, codes in (
            (LOSS_FUNCTIONS, self._losses, self._loss_codes),
            (_DROPOUT_FUNCTIONS, self._dropout, self._dropout_codes),
        ):
            for name in names:
                if self._is_new(functional, name):
                    code = code_of(functional, name, listener)
                    if code is not None:
                        codes.add(code)

    def remove(self, calls: FunctionCalls) -> None:
        """Put all back, if nobody else follows."""
        self._followers.discard(calls)
        if self.latest is calls.me:
            self._listen(None)
        if not self._followers:
            self.is_on = self._activations.is_on = self._dropout.is_on = False
            self._put_builtins_back()
            for codes in self._all_codes():
                codes.remove()
            # The next training is another one: what it compiles is yet to come.
            self.born, self._is_compiled = now(), False
            self._names.clear()
            self._places.clear()

    def forward_begins(self, calls: FunctionCalls) -> None:
        """A root is called; what is called inside is for *calls*."""
        if self.latest is not calls.me:
            self._listen(calls)
        self.is_on = self._activations.is_on = calls.is_in_forward
        if not self.is_on:
            self._put_builtins_back()
        may_change = self._may_change()
        if may_change:
            self._activation_codes.exchange(self.is_on)
        if may_change and self.is_on and not self._has_places:
            self._has_places = True
            for owner, name, original, diverted in self._places:
                if getattr(owner, name) is original:
                    setattr(owner, name, diverted)

    def follow_dropout(self, is_followed: bool) -> None:
        """A root is called, whose dropout is followed or not."""
        self._dropout.is_on = is_followed
        codes = self._dropout_codes
        if codes.are_diverted is not is_followed and self._may_change():
            codes.exchange(is_followed)

    def forward_ends(self) -> None:
        """No forward is under way, and builtins are in their places.

        Code is not put back before a forward begins that is not captured: in the
        beginning, and by short schedules, the next one is.
        """
        self._activations.is_on = self._dropout.is_on = False
        self._put_builtins_back()

    def set_idle(self, is_idle: bool) -> None:
        """Change nothing any longer: the compiler is about to trace.

        It guards the code of functions, which is from now on that which diverts them.
        """
        if not is_idle:
            self._is_compiled = True
            self._put_builtins_back()
            for codes in self._all_codes():
                codes.exchange(True)

    def _listen(self, calls: FunctionCalls | None) -> None:
        """Calls are of this training from now on; None: of none."""
        self.latest = None if calls is None else calls.me
        counter = None if calls is None else calls.session.counted.counter_of_core
        for codes in self._all_codes():
            codes.counter = counter

    def _may_change(self) -> bool:
        return not self._is_compiled and hooks_may_go(self)

    def _all_codes(self) -> tuple[DivertedCodes, ...]:
        return self._activation_codes, self._dropout_codes, self._loss_codes

    def _put_builtins_back(self) -> None:
        if self._has_places:
            self._has_places = False
            for owner, name, original, diverted in self._places:
                if getattr(owner, name) is diverted:
                    setattr(owner, name, original)

    def _is_new(self, owner: types.ModuleType, name: str) -> bool:
        key = f"{owner.__name__}.{name}"
        is_new = key not in self._names
        self._names.add(key)
        return is_new


_diverted = _Diverted()


def _is_of_a_module(caller: types.FrameType) -> bool:
    """Whether the output of a module is what the function has answered.

    A module without others inside and without parameters is one that computes this.
    """
    if caller.f_globals.get("__name__") in _OWN:
        return True
    if caller.f_code.co_name != "forward":
        return False
    module = caller.f_locals.get("self")
    return isinstance(module, nn.Module) and not (module._modules or module._parameters)


def _reduction(call: FunctionCall) -> Any:
    """How a loss was asked to put its parts together."""
    given = call.kwargs.get("reduction")
    # What older programs say instead.
    average, reduces = (call.kwargs.get(name) for name in ("size_average", "reduce"))
    if isinstance(average, bool) or isinstance(reduces, bool):
        return legacy_get_string(average, reduces, emit_warning=False)
    if given is None and len(call.args) > 2:
        given = next((each for each in call.args[2:] if isinstance(each, str)), None)
    return given


def _begins_at(node: Any, nodes: set[int]) -> bool:
    """Whether a node computes nothing but one of these, scaled or averaged."""
    for _ in range(_MOST_OPERATIONS):
        if node is None:
            return False
        if node._sequence_nr() in nodes:
            return True
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return False
