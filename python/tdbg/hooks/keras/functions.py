"""What stands in for ``train_function``, ``test_function`` and ``predict_function``.

Keras makes these three functions of a model when they are first needed, and calls them
for each execution.  ``StepFunction`` has two variants of one: the plain one, which
Keras makes and nobody touches, and one with taps.  A step that captures nothing but
losses and numbers calls the plain one.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tdbg.capture.session import Session
from tdbg.capture.step_clock import STEP_OF
from tdbg.hooks.compiled.step import CompiledStep
from tdbg.hooks.keras.backend import Answer, Backend
from tdbg.hooks.keras.mode import KerasMode
from tdbg.hooks.keras.optimizers import trains_as_built
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.modes import EVAL, PREDICT, TRAIN, TRAINING, ModeKeys

__all__ = ["FUNCTIONS", "StepFunction"]

_log = logging.getLogger("tdbg")
FUNCTIONS = {
    "train_function": ("make_train_function", "train_step", TRAIN),
    "test_function": ("make_test_function", "test_step", EVAL),
    "predict_function": ("make_predict_function", "predict_step", PREDICT),
}
"""The functions of a model: the method that makes each, its step, and its mode."""


class _Tapped(NamedTuple):
    """The variant with taps.

    Attributes:
        step: The step of the model.
        function: What Keras has made of it.
    """

    step: Callable[..., Any]
    function: Callable[..., Any]


class StepFunction(CompiledStep[_Tapped]):
    """One of the three functions of a model, with and without taps.

    Args:
        watched: Captures the steps.
        attribute: The name of the function.
        mode: Receives the mode.
    """

    def __init__(self, watched: WatchedModel, attribute: str, mode: KerasMode) -> None:
        self._maker, self._step, self._own_mode = FUNCTIONS[attribute]
        super().__init__(
            watched.session,
            f"the {self._step} of {watched.root}",
            "tdbg captures no gradients or layer tensors",
            counts_faults=True,
        )
        self._watched = watched
        self._attribute = attribute
        self._mode = mode
        self._plain: Callable[..., Any] | None = None
        # Whether the plain function may have been traced.
        self._has_run_plain = self._has_warned = False
        # The plain function that ``_run_plain`` calls.
        self._noted_of: Callable[..., Any] | None = None

    @property
    def session(self) -> Session:
        """The session that it captures for."""
        return self._session

    @property
    def _backend(self) -> Backend:
        return self._watched.backend

    # ---- installing ------------------------------------------------------------

    def install(self) -> None:
        """Take the place of the model's function, which need not be made yet."""
        model = self._watched.model
        current = getattr(model, self._attribute, None)
        if isinstance(current, StepFunction):
            if current is self:
                return
            current.session.close("another hook took over the model")
            current.remove()
            current = getattr(model, self._attribute, None)
        self._light = None
        if current is not self._plain:
            self._plain = current  # None: it was compiled anew.
            self._has_run_plain = current is not None
            self._tapped.forget()
        vars(model)[self._attribute] = self

    def remove(self) -> None:
        """Give the place back, if it is still taken."""
        model = self._watched.model
        if model is not None and vars(model).get(self._attribute) is self:
            vars(model)[self._attribute] = self._plain

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model makes its functions anew."""
        return type(None), ()

    def _make(self) -> Callable[..., Any]:
        """Let Keras make the function."""
        model = self._watched.model
        own = vars(model)
        own[self._attribute] = None
        try:
            getattr(model, self._maker)()
            made: Callable[..., Any] = own[self._attribute]
        finally:
            own[self._attribute] = self
        return made

    def _make_plain(self) -> Callable[..., Any]:
        if self._plain is None:
            self._plain = self._make()
            if self._own_mode is TRAIN:
                self._session.run(self._watched.first_steps.compiled)
        if self._noted_of is not self._plain:
            self._noted_of = self._plain
            self._run_plain = self._backend.noting(self._plain, self._note_batch)
        return self._run_plain

    def _make_tapped(self) -> _Tapped:
        """Let Keras make the function of a step with taps."""
        watched = self._watched
        model = watched.model
        step = getattr(model, self._step)
        if self._own_mode is TRAIN:
            step = watched.first_steps.program.watching(step, model)
        tapped = self._backend.tap(step, model, self._new_taps, watched.install())
        tapped = functools.wraps(step)(tapped)
        with self._has_step(tapped):
            return _Tapped(tapped, self._make())

    @contextlib.contextmanager
    def _has_step(self, step: Callable[..., Any]) -> Iterator[None]:
        """While it lasts, the model has this step."""
        own, name = vars(self._watched.model), self._step
        before = own.get(name)
        own[name] = step
        try:
            yield
        finally:
            if before is None:
                own.pop(name, None)
            else:
                own[name] = before

    def _new_taps(self) -> Any:
        self._tapped.n_traces += 1
        return self._watched.make_taps()

    # ---- calling ---------------------------------------------------------------

    def _note_batch(self, batch: Any) -> None:
        """Add a batch, as Keras gives it to a step, to the step or the evaluation."""
        if isinstance(batch, list) and len(batch) == 1:
            (batch,) = batch
        given = batch if isinstance(batch, tuple) else (batch,)
        self._session.clock.add_batch(given)
        if self._own_mode is TRAIN and self._watched.first_steps.targets.wants_batches:
            self._session.run(self._see_targets, given)

    def _see_targets(self, batch: tuple[Any, ...]) -> None:
        watched = self._watched
        self._session.run(watched.first_steps.see_inputs, watched.model, batch)
        functions = watched.losses.functions(watched.model)
        if watched.first_steps.targets.see(watched.model, functions, batch):
            watched.model_info.changed()

    def _trains(self) -> bool:
        return self._mode.is_called(self._own_mode)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plain = self._make_plain()
        session = self._session
        if not session.is_live:
            return plain(*args, **kwargs)
        mode = self._mode.of_function(self._own_mode)
        n_steps = 1
        if self._own_mode is not PREDICT:
            n_steps = int(getattr(self._watched.model, "steps_per_execution", 1) or 1)
        if n_steps > 1:
            result = self._run_many(plain, mode, args, n_steps)
        elif session.run(self._watched.is_due, mode):
            result = self._run_tapped(mode, args)
        else:
            result = self._run_without(plain, mode, args)
        if mode in TRAINING and session.should_stop and not session.raises_on_stop:
            self._watched.model.stop_training = True
        return result

    def _light_step_failed(self, error: BaseException, args: tuple[Any, ...]) -> None:
        if isinstance(error, Exception) and not self._backend.is_end(error):
            now_ns = time.perf_counter_ns()
            self._session.run(self._fail, self._own_mode, args, now_ns)

    def _run_many(
        self, plain: Callable[..., Any], mode: ModeKeys, args: tuple[Any, ...], n: int
    ) -> Any:
        """Run several steps: one by one if any of them is captured."""
        session = self.session
        if not session.run(self._watched.is_due_within, mode, n):
            return self._run_without(plain, mode, args, n)
        result: Any = None
        for i in range(n):
            if i:
                session.run(session.obey, mode)
            try:
                result = self._run_tapped(mode, args)
            except Exception as error:
                if i and self._backend.is_end(error):
                    break
                raise
            args = self._backend.following(args, result)
        return result

    def _run_without(
        self,
        plain: Callable[..., Any],
        mode: ModeKeys,
        args: tuple[Any, ...],
        n_steps: int = 1,
    ) -> Any:
        session, backend = self.session, self._backend
        self._has_run_plain = True
        start_ns = time.perf_counter_ns()
        before = session.run(self._watched.before_plain, mode, args)
        clock, phase = session.clock, STEP_OF[mode]
        clock.enter(phase)
        try:
            result = plain(*args)
        except Exception as error:
            if not backend.is_end(error):
                session.run(self._fail, mode, args, start_ns)
            raise
        finally:
            clock.leave(phase)
        session.run(self._watched.after_plain, mode, result, before, start_ns, n_steps)
        if mode is TRAIN and n_steps == 1:
            self._light = session.run(self._watched.begin_light_steps)
        return result

    def _fail(self, mode: ModeKeys, args: tuple[Any, ...], start_ns: int) -> None:
        state = self._backend.state_before(self._watched.model, args)
        self._watched.begin(mode, state, start_ns=start_ns)
        self.session.forward_lost()

    def _run_tapped(self, mode: ModeKeys, args: tuple[Any, ...]) -> Any:
        session, backend, watched = self.session, self._backend, self._watched
        batch = backend.next_batch(args)  # Raises where there are no more.
        state = backend.state_before(watched.model, args)
        begun = session.run(watched.begin_tapped, mode, state)
        context, ends_step = begun or (None, True)
        del state
        clock, phase = session.clock, STEP_OF[mode]
        clock.enter(phase)
        self._note_batch(batch)
        try:
            answer = self._answer(args, batch)
        except BaseException:
            session.run(session.forward_lost)
            raise
        finally:
            clock.leave(phase)
        state = backend.state_after(watched.model, answer.result)
        session.run(watched.end, context, mode, answer, state, ends_step)
        return answer.result

    def _is_another_step(self) -> bool:
        """Whether a variant that is traced now would not be the step that goes on."""
        is_compiled = self._backend.keeps_traces and not self._watched.is_eager
        goes_on = self._own_mode is TRAIN and is_compiled and self._has_run_plain
        if not goes_on or trains_as_built(self._watched.model):
            return False
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: you froze or unfroze layers and did not compile the model again, "
                "so the compiled step goes on as it was. tdbg captures no gradients "
                "and no layer tensors until you call compile()",
                self._watched.root,
            )
        return True

    def _answer(self, args: tuple[Any, ...], batch: Any) -> Answer:
        """Call the variant with taps; the plain one where it cannot be traced."""
        watched, backend = self._watched, self._backend

        def without() -> Answer:
            return Answer(self._make_plain()(*backend.with_batch(args, batch)), {})

        if self._session.run(self._is_another_step):
            return without()
        tapped = self._tapped.of(watched.revision, self._make_tapped)
        if tapped is None:
            return without()

        def with_taps() -> Answer:
            # Some functions of Keras look the step up when they are called.
            with self._has_step(tapped.step):
                returned = tapped.function(*backend.with_batch(args, batch))
            return backend.answer(returned)

        def is_own(error: Exception) -> bool:
            return self._tapped.has_worked or backend.has_run(watched.model, error)

        return self._tapped.run(
            with_taps, without, is_own, compiles=not watched.is_eager
        )
