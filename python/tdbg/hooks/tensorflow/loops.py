"""``Loops``: the models, losses and optimizers of loops that a hook captures.

``GradientTape.gradient`` is the backward pass where a loop runs eagerly.  A call of a
``tf.function`` is a training step as a whole if steps of training end in it, and
evaluation if there are only steps of evaluation in it; which it is shows in its first
calls.  Both are replaced on their classes while a loop is watched: no tape and no graph
is changed.

Thread safety: the training's thread; graphs report from threads of TensorFlow, one
step after the other.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import itemgetter
from typing import Any

from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.naming import UniqueNames
from tdbg.capture.session import Session
from tdbg.capture.step_clock import BACKWARD, COMPUTE, EVALUATION
from tdbg.errors import ConfigurationError
from tdbg.hooks.keras.backend import Backend
from tdbg.hooks.keras.model_info import KerasModel
from tdbg.hooks.keras.replicas import strategy_problem
from tdbg.hooks.keras.tracing import Patches
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.hooks.tensorflow.compiled import FunctionStep, Loop
from tdbg.hooks.tensorflow.forwards import Forwards
from tdbg.hooks.tensorflow.given_losses import LossPatches, wrapped
from tdbg.hooks.tensorflow.optimizers import OptimizerSteps
from tdbg.hooks.tensorflow.reports import Reports
from tdbg.hooks.tensorflow.steps import LoopMode, LoopSteps
from tdbg.modes import EVAL, ModeKeys
from tdbg.profiler.patches import LibraryPatches

__all__ = ["Loops"]

# Steps may end in one call of many only: gradients are added up.
_MOST_LOOKS = 64


class Loops:
    """Captures the loops of one training.

    Args:
        session: Receives what is captured.
        backend: Keras's; None: nothing is captured.

    Attributes:
        mode: The mode of the present call.
        steps: The steps.
    """

    def __init__(self, session: Session, backend: Backend | None) -> None:
        self._session = session
        self._backend = backend
        self._watched: list[WatchedModel] = []
        self._optimizers: list[OptimizerSteps] = []
        self._names = UniqueNames()
        self._patches = Patches()
        self._loss_patches = LossPatches()
        self._model_info = ModelInfoWriter(session, KerasModel(self._watched))
        self.steps = LoopSteps(session, self._watched)
        self.mode = LoopMode(session)
        self._parts: tuple[Reports, Forwards] | None = None
        self._tape_calls: TapeCalls | None = None
        session.listen(change=self._refresh)

    def time_calls(self) -> None:
        """Measure calls of TensorFlow, now that the clock of the session runs."""
        if self._backend is not None:
            self._tape_calls = TapeCalls(self._session)
            stop = self._tape_calls.close
            self._session.listen(close=stop, rest=stop)

    def close(self) -> None:
        """Put everything back; the run is about to end."""
        self._session.run(self._model_info.conclude)
        self._loss_patches.undo()
        self._patches.undo()

    def _refresh(self) -> None:
        for each in self._watched:
            each.refresh()
        if self._parts is not None:
            self._parts[0].refresh()

    # ---- registration ----------------------------------------------------------

    def register(self, model: Any, optimizer: Any = None, *, loss: Any = None) -> None:
        """Register a model; see ``Hook.register``."""
        if self._backend is None or not self._session.is_live:
            return
        if self._backend.name != "tensorflow":
            msg = f"watch needs Keras on TensorFlow, not on {self._backend.name}"
            raise ConfigurationError(msg)
        if not hasattr(model, "_flatten_layers"):
            msg = f"watch needs a Keras model, not {type(model).__name__}"
            raise ConfigurationError(msg)
        problem = strategy_problem(model)
        if problem is not None:
            raise ConfigurationError(problem)
        if optimizer is not None:
            _check_optimizer(optimizer)
        root = self._names.take(type(model).__name__)
        watched = WatchedModel(
            self._session,
            self._backend,
            model,
            root,
            f"{root}/" if self._watched else "",
            id(model),
            self._model_info,
        )
        self._watched.append(watched)
        _, forwards = self._made_parts(self._backend)
        forwards.enter_layers(watched, self._patches)
        if optimizer is not None:
            self.register_optimizer(optimizer, model=model)
        if loss is not None:
            self.register_loss(loss, model=model)

    def register_optimizer(
        self, optimizer: Any, *, model: Any = None, defines_step: bool = False
    ) -> None:
        """Register an optimizer; see ``Hook.register_optimizer``."""
        if self._backend is None or not self._session.is_live:
            return
        _check_optimizer(optimizer)
        watched = self._watched_of(model)
        watched.train_by(optimizer)
        self.steps.optimizer_found(id(optimizer), defines_step=defines_step)
        reports, forwards = self._made_parts(self._backend)
        steps = OptimizerSteps(
            watched,
            optimizer,
            self.steps,
            self.mode,
            forwards,
            reports,
            len(self._optimizers),
        )
        self._optimizers.append(steps)
        self._patches.wrap(optimizer, "apply", steps.wrap)

    def register_loss(self, loss: Any, *, model: Any = None) -> None:
        """Register a loss; see ``Hook.register_loss``."""
        if self._backend is None or not self._session.is_live:
            return
        if not hasattr(loss, "__dict__") or hasattr(loss, "__code__"):
            msg = (
                f"loss={getattr(loss, '__name__', loss)!r} is not an object that tdbg "
                "can watch: write `loss = hook.wrap_loss(loss)` after you create the "
                "hook"
            )
            raise ConfigurationError(msg)
        self._loss_patches.change(loss, self._show(loss, model))

    def wrap_loss(self, loss: Callable[..., Any], *, model: Any = None) -> Any:
        """Wrap a loss function; see ``Hook.wrap_loss``."""
        given: object = loss
        if not callable(given):
            msg = f"wrap_loss needs a function of labels and predictions, not {given!r}"
            raise ConfigurationError(msg)
        if self._backend is None or not self._session.is_live:
            return loss
        return wrapped(loss, self._show(loss, model))

    def function(
        self,
        function: Callable[..., Any] | None = None,
        *,
        mode: ModeKeys | None = None,
        **options: Any,
    ) -> Any:
        """Make a ``tf.function`` that the hook captures; see ``Hook.function``."""
        if function is None:
            return functools.partial(self.function, mode=mode, **options)
        given: object = function
        if not callable(given):
            msg = f"hook.function needs a function, not {given!r}"
            raise ConfigurationError(msg)
        if self._backend is None or not self._session.is_live:
            return import_module("tensorflow").function(function, **options)
        self._watched_of(None)
        reports, forwards = self._made_parts(self._backend)
        loop = Loop(self.steps, self.mode, reports, forwards, self._optimizers)
        return FunctionStep(function, mode, loop, options)

    def model_with(self, variables: Iterable[Any]) -> Any:
        """Return the registered model that has most of these variables."""
        given = {id(each) for each in variables}
        counts = [
            (sum(id(each) in given for each in watched.model.variables), watched.model)
            for watched in self._watched
            if watched.model is not None
        ]
        most = max(counts, key=itemgetter(0), default=(0, None))
        return most[1] if most[0] else None

    def _show(self, loss: Any, model: Any) -> Any:
        watched = self._watched_of(model)
        function = watched.losses.add(watched.model, loss)
        return self._made_parts(watched.backend)[1].show_loss(watched, function)

    def _watched_of(self, model: Any) -> WatchedModel:
        """The registered model, or the latest one.

        Raises:
            ConfigurationError: If there is none.
        """
        found = [each for each in self._watched if model in (None, each.model)]
        if not found:
            msg = "register the model first: hook.register(model, optimizer)"
            raise ConfigurationError(msg)
        return found[-1]

    def _made_parts(self, backend: Backend) -> tuple[Reports, Forwards]:
        if self._parts is None:
            reports = Reports(self.steps, backend)
            self._parts = reports, Forwards(self.steps, self.mode, reports)
        return self._parts


def _check_optimizer(optimizer: Any) -> None:
    """Raise ConfigurationError if it is no optimizer of Keras."""
    if not hasattr(optimizer, "apply") or not hasattr(optimizer, "update_step"):
        msg = f"watch needs a Keras optimizer, not {type(optimizer).__name__}"
        raise ConfigurationError(msg)


# ---- calls that are phases of a loop -------------------------------------------------


class TapeCalls:
    """Measures gradients and calls of graphs by the clock of a session.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock = session.clock
        self._patches = LibraryPatches()
        self._phases: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        if not session.clock.is_on:
            return
        tf: Any = import_module("tensorflow")
        self._is_eager: Callable[[], bool] = tf.executing_eagerly
        me = weakref.ref(self)
        with contextlib.suppress(Exception):
            put = self._patches.put
            graph = type(tf.function(lambda: None))
            gradient, call = TapeCalls.gradient, TapeCalls.graph
            put(tf.GradientTape, "gradient", lambda f: _timed(me, f, gradient))
            put(graph, "__call__", lambda f: _timed(me, f, call))
        weakref.finalize(self, self._patches.undo).atexit = False

    def close(self) -> None:
        """Measure no longer."""
        self._patches.undo()

    def gradient(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute gradients."""
        return self._in_phase(BACKWARD, function, args, kwargs)

    def graph(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a graph."""
        phase = self._phases.get(args[0], -1)
        if phase < -_MOST_LOOKS:
            return function(*args, **kwargs)
        if phase < 0:
            return self._look(phase, function, args, kwargs)
        return self._in_phase(phase, function, args, kwargs)

    def _in_phase(
        self, phase: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a function in a phase, unless it is traced: that is another one."""
        if not self._is_eager():
            return function(*args, **kwargs)
        clock = self._clock
        clock.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            clock.leave(phase)

    def _look(
        self, before: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a graph, and look at which steps there are in it, if it is still new.

        Args:
            before: Less than 0, by how often that was done.
            function: What calls it.
            args: Its arguments.
            kwargs: Its named ones.
        """
        session = self._session
        n_trained, n_evaluated = session.clock.n_steps, session.next_step(EVAL)
        result = function(*args, **kwargs)
        phase = before - 1
        if session.clock.n_steps > n_trained:
            phase = COMPUTE
        elif session.next_step(EVAL) > n_evaluated:
            phase = EVALUATION
        self._phases[args[0]] = phase
        return result


def _timed(
    calls: weakref.ref[TapeCalls],
    function: Callable[..., Any],
    call: Callable[[TapeCalls, Callable[..., Any], Any, Any], Any],
) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        found = calls()
        if found is None:
            return function(*args, **kwargs)
        return call(found, function, args, kwargs)

    return timed
