"""Reports: what a graph tells Python while it runs.

A report is a call of Python (``tf.numpy_function``) with the tensors of a forward, or
those of the gradients that are applied.  How much it carries is read from a variable
when the graph runs: nothing, the losses, or everything; so steps that capture nothing
of a forward do not leave the graph.

What XLA compiles cannot call Python.

The replicas of a strategy report each by itself, and perhaps at once: a report counts
when all replicas have made it.

Thread safety: threads of TensorFlow; a lock lets one report be handled at a time.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

import numpy as np

from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.optimizers import SKIPPED
from tdbg.hooks.keras.replicas import FlatTensors, n_replicas, replica_number
from tdbg.hooks.keras.tracing import Taps
from tdbg.hooks.tensorflow.steps import ALL, LOSSES, NOTHING, LoopSteps
from tdbg.modes import EVAL, PREDICT, TRAIN, ModeKeys

__all__ = ["SAMPLES", "Reports", "Tensors", "is_compiled_by_xla"]

_log = logging.getLogger("tdbg")

Tensors = Mapping[str, Any]
_LOSS = f"{int(Role.LOSS)} "
#: The key of how many samples a forward has; no tensor of the model has it.
SAMPLES = "\0samples"
_LIGHT = (_LOSS, SKIPPED, SAMPLES)


class Reports:
    """Puts reports into graphs, and takes them.

    Args:
        steps: The steps of the loop.
        backend: Knows tensors.
    """

    def __init__(self, steps: LoopSteps, backend: Backend) -> None:
        self._steps = steps
        self._session: Session = steps.session
        self._backend = backend
        self._tf: Any = import_module("tensorflow")
        self._lock = threading.RLock()
        self._waiting: dict[Hashable, list[deque[Tensors]]] = {}
        self._seen: set[str] = set()
        self._warned: set[str] = set()
        self._levels = _apart(self._make_levels)
        self._told_levels: dict[ModeKeys, int] = {}

    def make_taps(self) -> Taps:
        """Make the taps of a forward."""
        return Taps(self._backend, self._session.run)

    def taps_maker(self) -> Callable[[], Taps]:
        """Return what makes taps that hold tensors of the present graph only."""
        scope = self._backend.scope()
        return lambda: Taps(self._backend, self._session.run, scope)

    # ---- levels ------------------------------------------------------------------

    def _make_levels(self) -> dict[ModeKeys, Any]:
        """Variables that graphs ask how much the next step of a mode captures."""
        tf = self._tf
        with tf.init_scope(), tf.device("CPU:0"):
            return {
                mode: tf.Variable(ALL, trainable=False, dtype=tf.int32)
                for mode in (TRAIN, EVAL, PREDICT)
            }

    def refresh(self) -> None:
        """Tell graphs how much the next steps capture."""
        for mode in self._levels:
            self._tell(mode)

    def _tell(self, mode: ModeKeys) -> None:
        level = self._steps.level(mode)
        if level != self._told_levels.get(mode):
            self._levels[mode].assign(level)
            self._told_levels[mode] = level

    # ---- in a trace --------------------------------------------------------------

    def may_report(self) -> bool:
        """Whether the function that is traced may call Python; warns if not."""
        if is_compiled_by_xla():
            self.warn(
                "a function is compiled by XLA (jit_compile=True), which cannot "
                "call Python, so tdbg captures nothing from it; use hook.function "
                "instead of tf.function"
            )
            return False
        return True

    def warn(self, text: str) -> None:
        """Log something once."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def report_forward(self, mode: ModeKeys, held: Tensors) -> Any:
        """Let the graph report a forward; return a tensor that is there afterwards."""
        tf = self._tf
        take = functools.partial(self._forward_ran, mode)
        losses = {k: t for k, t in held.items() if k.startswith(_LOSS)}

        def call(tensors: Tensors) -> Callable[[], Any]:
            return lambda: self._call(tensors, take, (mode, tuple(held)))

        branches = {NOTHING: lambda: tf.constant(True), LOSSES: call(losses)}
        if mode is not TRAIN:
            branches[NOTHING] = call({})  # It is a step.
        return tf.switch_case(
            self._levels[mode].read_value(), branches, default=call(held)
        )

    def report_gradients(
        self, held: Tensors, take: Callable[..., bool], key: Hashable
    ) -> Any:
        """Let the graph report that gradients are applied.

        Args:
            held: Gradients, and what else the forward held.
            take: Called with the tensors of all replicas, and whether they are all;
                returns whether the graph is to report the update, too.
            key: Of this report.

        Returns:
            Whether the update is to be reported: a tensor that the update waits for.
        """
        tf = self._tf
        light = {k: t for k, t in held.items() if k.startswith(_LIGHT)}
        is_full = self._levels[TRAIN] >= ALL

        def report(tensors: Tensors, given: bool) -> Callable[[], Any]:
            def taken(replicas: Sequence[Tensors]) -> bool:
                return take(replicas, given)

            return lambda: self._call(tensors, taken, key)

        return tf.cond(is_full, report(held, True), report(light, False))

    def report_updates(
        self,
        condition: Any,
        changed: Sequence[Any],
        take: Callable[[], bool],
        key: Hashable,
    ) -> None:
        """Let the graph report that variables have changed, where a condition holds.

        Args:
            condition: A tensor.
            changed: The variables of Keras.
            take: Called then.
            key: Of this report.
        """
        tf = self._tf

        def report() -> Any:
            # Reads come after what the graph has written before.
            read = [each.value.read_value() for each in changed]
            with tf.control_dependencies(read):
                return self._call({}, lambda _: take(), key)

        tf.cond(condition, report, lambda: tf.constant(True))

    def _call(
        self,
        tensors: Tensors,
        take: Callable[[Sequence[Tensors]], bool],
        key: Hashable,
    ) -> Any:
        """Call Python with tensors; return what it answers, as a tensor.

        Replicas have no answer when they are not all there: it counts as yes.
        """
        tf = self._tf
        flat, n = FlatTensors.of(tf, tensors), n_replicas(tf)
        replica = tf.constant(replica_number(tf), tf.int32)

        clock = self._session.clock

        def told(replica: Any, *arrays: Any) -> np.bool_:
            found = flat.restored(tf, arrays)
            with self._lock:
                # The training's thread waits for the graph.
                clock.stand_in()
                try:
                    return np.bool_(self._told(key, int(replica), n, found, take))
                finally:
                    clock.stand_down()

        answer = tf.numpy_function(told, [replica, *flat.tensors], tf.bool)
        answer.set_shape(())
        return answer

    # ---- when a graph runs -------------------------------------------------------

    def _told(
        self,
        key: Hashable,
        replica: int,
        n: int,
        tensors: Tensors,
        take: Callable[[Sequence[Tensors]], bool],
    ) -> bool:
        session = self._session
        if n == 1:
            return bool(session.run(take, [tensors]))
        waiting = self._waiting.setdefault(key, [])
        while len(waiting) < n:
            waiting.append(deque())
        waiting[replica].append(tensors)
        while all(waiting):
            session.run(take, [each.popleft() for each in waiting])
        return True

    def _forward_ran(self, mode: ModeKeys, replicas: Sequence[Tensors]) -> bool:
        """A graph has computed a loss."""
        session, keys = self._session, set(replicas[0])
        step = session.training if mode is TRAIN else None
        if step is None or self._seen & keys:
            self._seen.clear()
            context = self._steps.begin_forward(mode)
        else:
            context = step.context
        self._seen |= keys
        self._steps.take(context, replicas)
        if mode is not TRAIN:
            self._tell(mode)
        return True


def is_compiled_by_xla() -> bool:
    """Whether the function that is traced now, if any, is compiled by XLA."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        is_function = hasattr(owner, "python_function")
        if is_function and getattr(owner, "_jit_compile", None):
            return True
        frame = frame.f_back
    return False


def _apart(make: Callable[[], Any]) -> Any:
    """Call a function where no strategy of the caller holds."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    return made[0]
