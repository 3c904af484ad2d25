"""The functions of PyTorch that tdbg follows, when, and for which training.

Activations are followed in forwards that are captured, dropout in forwards that
evaluate, losses always.

Thread safety: functions are diverted by the training's thread; any thread may call
them.

Errors: a function that cannot be diverted is left as it is.
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.nn import functional

from tdbg.capture.session import Session
from tdbg.config.class_kinds import ACTIVATION_FUNCTIONS
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now
from tdbg.hooks.pytorch.functions.diverted import (
    DivertedCodes,
    FunctionCall,
    Listener,
    Place,
    code_of,
    place_of,
)
from tdbg.run.profile_tables import Phase

__all__ = ["LOSS_FUNCTIONS", "Follower", "followed"]

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
"""Functions of ``torch.nn.functional`` that are captured as losses."""

# Functions that drop unless an argument tells them not to.
_DROPOUT_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


class Follower(Protocol):
    """A training that captures the arguments and results of functions.

    Attributes:
        me: A reference to itself.
        session: That of the training.
        thread: The thread that called its root last.
        is_in_forward: Whether a forward is under way whose activations are captured.
        follows_losses: Whether losses are captured, and dropout is noted.
    """

    me: weakref.ref[Any]
    session: Session
    thread: int
    is_in_forward: bool
    follows_losses: bool

    def activation(self, call: FunctionCall) -> None:
        """Capture the result of an activation function."""

    def take_loss(self, call: FunctionCall) -> None:
        """Capture what a loss function was given and has returned."""

    def note_loss(self, call: FunctionCall) -> bool:
        """Note a loss of a step that is counted; False: the step is to be seen."""

    def take_dropout(self, call: FunctionCall) -> None:
        """Note who calls dropout."""


class _Activations(Listener):
    """Hears of activations while outputs of a forward are captured."""

    def called(self, call: FunctionCall) -> None:
        """Capture the call of an activation function, which has returned."""
        calls = None if followed.latest is None else followed.latest()
        if calls is not None:
            calls.activation(call)


class _Losses(Listener):
    """Hears of losses, always."""

    is_on = True

    def called(self, call: FunctionCall) -> None:
        """Capture the call of a loss function, which has returned."""
        calls = None if followed.latest is None else followed.latest()
        if calls is None or not calls.follows_losses:
            return
        session = calls.session
        # Most steps that are only counted have no loss, and seldom come here.
        if session.is_quiet or threading.get_ident() != calls.thread:
            return
        if not (session.is_noted and calls.note_loss(call)):
            session.run(calls.take_loss, call)


class _Dropout(Listener):
    """Hears of dropout while a forward evaluates."""

    def called(self, call: FunctionCall) -> None:
        """Note the call of a dropout function, which has returned."""
        calls = None if followed.latest is None else followed.latest()
        if (
            calls is not None
            and calls.follows_losses
            and threading.get_ident() == calls.thread
        ):
            calls.session.run(calls.take_dropout, call)


class _Followed:
    """The functions of this process that are diverted, and the training that follows.

    If there are several trainings, calls belong to the one whose root ran last.

    Attributes:
        latest: A reference to the training that follows now; None: none does.
        is_on: Whether activations of the latest forward are followed.
    """

    def __init__(self) -> None:
        self.born = now()
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self.latest: weakref.ref[Follower] | None = None
        self.is_on = False
        self._activations, self._losses = _Activations(), _Losses()
        self._dropout = _Dropout()
        self._names: set[str] = set()
        self._activation_codes, self._dropout_codes = DivertedCodes(), DivertedCodes()
        self._loss_codes = DivertedCodes()  # Always diverted.
        self._places: list[Place] = []
        self._has_places = False  # Whether builtins are replaced.
        self._is_compiled = False

    def follow_activations(self, calls: Follower) -> None:
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

    def follow_losses(self, calls: Follower) -> None:
        """Divert losses, and dropout."""
        self._followers.add(calls)
        for names, listener, codes, phase in (
            (LOSS_FUNCTIONS, self._losses, self._loss_codes, Phase.FORWARD),
            (_DROPOUT_FUNCTIONS, self._dropout, self._dropout_codes, None),
        ):
            for name in names:
                if self._is_new(functional, name):
                    code = code_of(functional, name, listener, phase)
                    if code is not None:
                        codes.add(code)

    def remove(self, calls: Follower) -> None:
        """Put everything back, unless another training follows."""
        self._followers.discard(calls)
        if self.latest is calls.me:
            self._listen(None)
        if not self._followers:
            self.is_on = self._activations.is_on = self._dropout.is_on = False
            self._put_builtins_back()
            for codes in self._all_codes():
                codes.remove()
            # The next training may not compile anything.
            self.born, self._is_compiled = now(), False
            self._names.clear()
            self._places.clear()

    def forward_begins(self, calls: Follower) -> None:
        """Note that a root is called; functions called inside are for *calls*."""
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
        """Note that a root is called, whose dropout is followed or not."""
        self._dropout.is_on = is_followed
        codes = self._dropout_codes
        if codes.are_diverted is not is_followed and self._may_change():
            codes.exchange(is_followed)

    def forward_ends(self) -> None:
        """Put builtins back: no forward is under way.

        Code goes back only when a forward begins that is not captured: at first, and
        with short schedules, the next forward is captured as well.
        """
        self._activations.is_on = self._dropout.is_on = False
        self._put_builtins_back()

    @contextlib.contextmanager
    def by_nobody(self) -> Iterator[None]:
        """Let no training hear of calls meanwhile: tdbg itself calls a model."""
        calls = None if self.latest is None else self.latest()
        self._listen(None)
        try:
            yield
        finally:
            self._listen(calls)

    def set_idle(self, is_idle: bool) -> None:
        """Change nothing any longer: the compiler is about to trace.

        It guards the code of functions, so they keep the diverting code from now on.
        """
        if not is_idle:
            self._is_compiled = True
            self._put_builtins_back()
            for codes in self._all_codes():
                codes.exchange(True)

    def _listen(self, calls: Follower | None) -> None:
        """Give calls to this training from now on; None: to none."""
        self.latest = None if calls is None else calls.me
        counter = None if calls is None else calls.session.step_counter
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


followed = _Followed()
"""Those of this process."""
