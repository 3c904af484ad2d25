"""Probe what a model computes, twice in a training, at no cost in between.

The first module that is registered and called is probed, by a copy of it in evaluation
mode, with some samples of the first batch: after the second step, when two batches are
known, and after the fiftieth, when layers that begin at zero have learnt something.
docs/probes.md says what is asked, and of which models.

Thread safety: the training's thread.

Errors: none; a model that cannot be probed is left alone, and an observation says why.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.probe import Probe
from tdbg.hooks.pytorch.checks.probe_batch import (
    FirstBatch,
    GivenLoss,
    ModelCall,
    Unsuitable,
)
from tdbg.hooks.pytorch.checks.quiet_copy import QuietCopy
from tdbg.hooks.pytorch.functions.followed_functions import followed
from tdbg.hooks.pytorch.model.call_context import is_in_transform
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA
from tdbg.modes import ModeKeys
from tdbg.run.observations import PROBE_QUESTIONS, Fault, Observation

__all__ = ["FunctionProbes"]

# Steps after which the model is probed.
_FIRST, _LAST = 2, 50
# Forwards and losses that are looked at, at most.
_MOST_CALLS, _MOST_LOSSES = 64, 8


class FunctionProbes:
    """The probes of one training.

    Args:
        session: Receives observations.
        is_open: Whether to probe at all.

    Attributes:
        is_open: Whether it must still hear of calls, losses and steps.
    """

    def __init__(self, session: Session, *, is_open: bool = True) -> None:
        self._session = session
        self._model: weakref.ref[nn.Module] | None = None
        self._name = "model"
        self._batch: FirstBatch | None = None
        self._n_calls = self._n_steps = 0
        self._has_probed = False
        self.is_open = is_open

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note that a registered module is about to be called."""
        if self._model is not None and self._model() is not model:
            return
        if self._n_calls >= _MOST_CALLS or IS_REPLICA in vars(model):
            return
        if not (model.training and torch.is_grad_enabled()) or is_in_transform():
            return
        self._n_calls += 1
        with self._guard():
            if self._batch is None:
                self._model, self._name = weakref.ref(model), name
                self._batch = FirstBatch(ModelCall.of(args, kwargs))
            else:
                self._batch.note_next(ModelCall.of(args, kwargs))

    def note_loss(self, value: Any) -> None:
        """Note the arguments of a loss: a pair of those by place and by name."""
        if not self.is_open or self._batch is None or self._n_calls > 1:
            return
        with self._guard():
            found = GivenLoss.of(value)
            if found is not None and len(self._batch.losses) < _MOST_LOSSES:
                self._batch.losses.append(found)

    def step_ends(self) -> None:
        """Probe the model if it is time; an optimizer has stepped."""
        if not self.is_open:
            return
        self._n_steps = max(self._n_steps + 1, self._session.n_training_steps)
        is_last = self._n_steps >= _LAST
        if self._n_steps < _FIRST or (self._has_probed and not is_last):
            return
        self._has_probed = True
        with self._guard():
            self._probe()
        if is_last:
            self.remove()

    def remove(self) -> None:
        """Probe no more."""
        self.is_open = False
        self._batch = None

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Let nothing escape, and count the time."""
        start = time.perf_counter_ns()
        try:
            yield
        except Unsuitable as reason:
            self._refuse(str(reason))
        except Exception as error:
            self._refuse(f"tdbg failed: {error!r}")
        finally:
            self._session.spend_once(time.perf_counter_ns() - start)

    def _refuse(self, reason: str) -> None:
        self.remove()
        self._say(Fault.PROBED, words=dict.fromkeys(PROBE_QUESTIONS, reason))

    def _say(
        self,
        fault: Fault,
        numbers: Mapping[str, float] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        step = max(0, self._session.latest_step(ModeKeys.TRAIN)[0])
        seen = Observation(fault, step, (self._name,), numbers or {}, words or {})
        self._session.run(self._session.observe, seen)

    def _probe(self) -> None:
        model = None if self._model is None else self._model()
        if model is None or self._batch is None:
            msg = "no call of it was seen outside of a compiled graph"
            raise Unsuitable(msg)
        _refuse_ranks()
        copied = QuietCopy(model)
        with copied.silence(), followed.by_nobody(), self._batch.autocast():
            probe = Probe(copied, self._batch)
            found = [*probe.findings()]
        self._say(Fault.PROBED, words=probe.unasked)
        for each in found:
            self._say(*each)
        if found:
            self.remove()


def _refuse_ranks() -> None:
    """Refuse where a forward may wait for other ranks, or a device records a graph.

    Raises:
        Unsuitable: If so.
    """
    distributed = torch.distributed
    is_shared = distributed.is_available() and distributed.is_initialized()
    if is_shared and distributed.get_world_size() > 1:
        msg = "it trains on several ranks, and a call may wait for the others"
        raise Unsuitable(msg)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        msg = "a CUDA graph is being recorded"
        raise Unsuitable(msg)
