"""A step of JAX in two variants: the user's own, and one with taps.

A step that captures nothing runs the user's function as ``jax.jit`` compiles it. The
variant with taps is compiled when the first step that captures is due; Python chooses
between both by the number of the step.

Thread safety: the training's thread.

Errors: nothing of tdbg raises into the training but ``TrainingStopped``. Where the
variant with taps cannot be compiled, it is given up, and the plain one runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from tdbg.capture.light_steps import LightSteps
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.step_clock import STEP_OF
from tdbg.config.collections import Role
from tdbg.hooks.compiled.step import CompiledFunction
from tdbg.hooks.jax.argument_taps import ArgumentTaps
from tdbg.hooks.jax.arguments import ArgumentReader, Arguments
from tdbg.hooks.jax.batches import find_batch
from tdbg.hooks.jax.chains import transformation_in
from tdbg.hooks.jax.closed_over import ClosedOver, held_by
from tdbg.hooks.jax.normalizations import TrainedStatistics
from tdbg.hooks.jax.primitive import when_done
from tdbg.hooks.jax.program_faults import StepProgram
from tdbg.hooks.jax.repeated_keys import RepeatedKeys
from tdbg.hooks.jax.returned import ReturnedTrees
from tdbg.hooks.jax.step_capture import OF_STEP, Execution, StepCapture
from tdbg.modes import TRAIN, TRAINING, ModeKeys

__all__ = ["JitStep", "code_of"]

# Arguments of jax.jit that number the arguments of the function.
_POSITIONS = ("donate_argnums", "static_argnums")
_TICKET = "tdbg_ticket"
# In so many calls it is looked for.
_MOST_UNFOUND = 3


class _Tapped(NamedTuple):
    """The variant with taps.

    Attributes:
        function: The function, as it is compiled with the ticket before its arguments.
        arguments: The arguments that the variant shows.
    """

    function: Callable[..., Any]
    arguments: ArgumentTaps


class JitStep(CompiledFunction[_Tapped]):
    """A function that is compiled, and captured when its steps are due.

    Args:
        function: The function of the user.
        mode: The mode of its steps; None: that of the hook.
        capture: Captures the steps of the hook.
        loss: Returns the loss of what the function returns.
        reader: Finds the parameters among the arguments.
        jit: Compiles: ``jax.jit``, ``nnx.jit`` or ``equinox.filter_jit``.
        options: Arguments for *jit*.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: ModeKeys | None,
        capture: StepCapture,
        loss: Callable[[Any], Any],
        reader: ArgumentReader,
        jit: Callable[..., Any],
        options: Mapping[str, Any],
    ) -> None:
        plain = jit(function, **options)
        super().__init__(capture.session, function, plain, mode, options)
        self._capture = capture
        self._loss = loss
        self._reader = reader
        self._jit = jit
        # A step that the program makes again goes on where the former one ended.
        self._code = code_of(function)
        self._key = id(self._code)
        # Of what is captured at a step whose arguments need not be looked at, and how
        # often the variant had been traced then: nothing is captured of them but what
        # the program shows.
        self._shows_all: tuple[StepPlan, int] | None = None
        self._returned = ReturnedTrees(capture.session, reader, capture.evaluations)
        self._keys = RepeatedKeys(capture.session, reader)
        self._closed_over = ClosedOver(capture.session, function)
        self._statistics = TrainedStatistics(capture.session, reader)
        add = capture.facts.add_program
        self._program = StepProgram(capture.session, reader, add)
        # Whether nobody has looked yet at the optimizers that the step reads.
        self._has_new_optimizers = True
        # How often nothing has told yet where the batch is.
        self._n_unfound = 0

    def _trains(self) -> bool:
        mode = self._capture.mode() if self._mode is None else self._mode
        return mode is TRAIN

    # ---- a call ------------------------------------------------------------------

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        capture, session = self._capture, self._session
        if not session.is_live:
            return self.plain(*args, **kwargs)
        mode = capture.mode() if self._mode is None else self._mode
        context = session.run(session.forward_begins, self._key, mode)
        execution: Execution | None = None
        if mode is not TRAIN:
            session.run(capture.flags.evaluation_begins, args, kwargs)
        clock, phase = session.clock, STEP_OF[mode]
        clock.enter(phase)
        try:
            if context is not None and context.takes and capture.is_due(context):
                execution = self._prepare(context, args, kwargs)
            if execution is None:
                outputs = self.plain(*args, **kwargs)
            else:
                outputs = self._run_tapped(execution, args, kwargs)
            if self._samples_of is None and clock.is_on:
                session.run(self._find_batch, args, kwargs, outputs)
            self._note_samples(args, kwargs)
        except BaseException:
            session.run(session.forward_lost)
            raise
        finally:
            clock.leave(phase)
            if capture.waits is not None:
                capture.waits.phase = phase
        looks = self._look(mode, args, kwargs, outputs)
        session.run(self._end, context, mode, outputs)
        if mode is TRAIN and execution is None and not looks:
            self._light = session.run(self._begin_light, outputs)
        return outputs

    def _look(
        self,
        mode: ModeKeys,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: Any,
    ) -> bool:
        """Look at a call that has returned; return whether it was one of the first."""
        session, capture, plain = self._session, self._capture, self.plain
        if mode is not TRAIN:
            session.run(capture.evaluations.look, self._reader, plain, args, kwargs)
            session.run(
                capture.ignored.look, self._reader, plain, args, kwargs, outputs
            )
            session.run(capture.flags.evaluated, args, kwargs)
            if self._closed_over.is_on:
                look = functools.partial(self._closed_over.look, trains=False)
                session.run(look, plain, args, kwargs)
            return False
        if self._has_new_optimizers:
            self._has_new_optimizers = False
            session.run(self._look_at_optimizers, args, kwargs)
        looks = capture.flags.is_on
        if looks:
            session.run(capture.flags.trained, args, kwargs)
        if self._program.is_on:
            session.run(self._read_program, args, kwargs, outputs)
        for each in (self._returned, self._statistics):
            if each.is_on:
                looks = True
                session.run(each.look, plain, args, kwargs, outputs)
        for other in (self._keys, self._closed_over):
            if other.is_on:
                looks = True
                session.run(other.look, plain, args, kwargs)
        if self._closed_over.has_numbers and not self._closed_over.is_on:
            session.run(self._closed_over.look_later, plain, args, kwargs)
        return looks

    def _read_program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        """Read what the step computes, once."""
        loss = self._loss(outputs)
        self._program.look(self.plain, args, kwargs, outputs, loss)
        self._returned.makes_state |= self._program.leaves_state

    def _look_at_optimizers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Look at the optimizers that the step is given, or that its code reads."""
        for each in (*args, *kwargs.values(), *held_by(self._function, args)):
            transformation = transformation_in(each)
            if transformation is not None:
                self._capture.facts.add_chain(transformation)

    def _find_batch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        if self._n_unfound < _MOST_UNFOUND:
            self._n_unfound += 1
            self._samples_of = find_batch(self._reader, args, kwargs, outputs)

    def _light_step_failed(self, error: BaseException, args: tuple[Any, ...]) -> None:
        del error, args
        self._session.run(self._fail)

    def _fail(self) -> None:
        self._session.forward_begins(self._key, TRAIN)
        self._session.forward_lost()

    def _begin_light(self, outputs: Any) -> LightSteps | None:
        """Begin to count steps that capture nothing but the loss; None: there are none.

        Args:
            outputs: The outputs of the step before.
        """
        capture = self._capture
        can_read, read = capture.loss_reader(self._loss, outputs)
        if not can_read:
            return None
        return LightSteps.begin(
            self._session,
            self._key,
            self._key,
            TRAIN,
            read=read,
            ended=capture.model_info.steps_ended,
        )

    def _prepare(
        self, context: StepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Execution | None:
        """Take what the step is called with; return what its taps are to show."""
        execution = self._open(context, len(args))
        plan = context.step_plan
        program_shows = execution is not None and execution.arguments is not None
        if program_shows and self._shows_all == (plan, self.n_traces):
            return execution
        capture, session = self._capture, self._session
        shown = frozenset() if execution is None else execution.plan.arguments
        found = session.run(self._read, args, kwargs)
        if found is None:
            return execution
        chosen = session.run(capture.choose, context, found, shown)
        if chosen:
            try:
                # The training would wait for them in this step, too; outside of the
                # meter, which is to show what tdbg costs.
                jax.block_until_ready([each.array for each in chosen])
            except BaseException:
                if execution is not None:
                    capture.close(execution)
                raise
            session.run(capture.take, context, chosen)
        elif chosen is not None and program_shows and not found.numbers:
            self._shows_all = plan, self.n_traces
        return execution

    def _open(self, context: StepContext, n_args: int) -> Execution | None:
        """Return the execution of a step with taps; None: it runs without."""
        capture, session = self._capture, self._session
        if context.step_plan.is_light:
            return None
        tapped = self._tapped.of(capture.revision, lambda: self._compile(n_args))
        if tapped is None:
            why = "the step does not compile with it"
            session.run(session.refuse, context, OF_STEP, why)
            return None
        arguments = tapped.arguments if self._tapped.has_worked else None
        return session.run(capture.open, context, arguments)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        with_states = self._session.may_capture(Role.OPTIMIZER_STATE)
        return self._reader.read(args, kwargs, with_states=with_states)

    def _run_tapped(
        self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the variant with taps, or the plain one where that cannot be compiled."""
        capture, tapped = self._capture, self._tapped.made
        if tapped is None:
            capture.close(execution)
            return self.plain(*args, **kwargs)
        n_traces = self.n_traces

        def with_taps() -> tuple[Any, Any]:
            capture.execution = execution
            try:
                outputs, done = tapped.function(execution.operand(), *args, **kwargs)
            except Exception:
                capture.close(execution)
                raise
            finally:
                capture.execution = None
            return outputs, done

        def is_own(error: Exception) -> bool:
            del error  # What was compiled before, or has begun to run, can only fail.
            return self.n_traces == n_traces or _are_gone(args, kwargs)

        outputs, done = self._tapped.run(
            with_taps,
            lambda: (self.plain(*args, **kwargs), None),
            is_own,
            compiles=not jax.config.jax_disable_jit,
        )
        if done is not None:
            self._session.run(capture.expect, execution, done)
        return outputs

    def _end(self, context: StepContext | None, mode: ModeKeys, outputs: Any) -> None:
        capture, session = self._capture, self._session
        if context is not None:
            capture.record_loss(context, self._loss(outputs))
        session.forward_ends()
        if mode in TRAINING:
            session.optimizer_begins(self._key, lambda: mode)
            capture.model_info.optimizer_stepped()
            session.optimizer_ends(self._key)

    # ---- the variant with taps ---------------------------------------------------

    def _compile(self, n_args: int) -> _Tapped:
        """Make the variant with taps, which has the ticket as a further argument.

        Args:
            n_args: How many positional arguments a call has.
        """
        function, capture = self._function, self._capture
        arguments = ArgumentTaps()

        def shown(ticket: Any, args: Any, kwargs: Any) -> Any:
            found = self._read(args, kwargs)
            return capture.show_arguments(arguments, found, ticket)

        def captured(ticket: Any, *args: Any, **kwargs: Any) -> Any:
            self._tapped.n_traces += 1
            after = capture.session.run(shown, ticket, args, kwargs)
            ticket = ticket if after is None else after
            with capture.tracing(ticket, (args, kwargs)) as restored:
                outputs = restored(function(*args, **kwargs))
                self._returned.makes_state |= capture.makes_state()
            return outputs, when_done(ticket)

        with contextlib.suppress(TypeError, ValueError):  # Of a builtin, say.
            signature = inspect.signature(function)
            first = inspect.Parameter(_TICKET, inspect.Parameter.POSITIONAL_ONLY)
            captured.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=[first, *signature.parameters.values()]
            )
        captured.__name__ = getattr(function, "__name__", "step")
        options = _shifted(self._options, n_args)
        return _Tapped(self._jit(captured, **options), arguments)


def code_of(function: Any) -> Any:
    """Return a mark that a function keeps when the program makes it again."""
    while isinstance(function, functools.partial):
        function = function.func
    with contextlib.suppress(ValueError):  # It goes round in circles.
        function = inspect.unwrap(function)
    return getattr(function, "__code__", function)


def _shifted(options: Mapping[str, Any], n_args: int) -> dict[str, Any]:
    """Return options of ``jax.jit`` for a function with one more argument before."""
    shifted = dict(options)
    for name in _POSITIONS:
        given = options.get(name)
        if given is not None:
            numbers = (given,) if isinstance(given, int) else tuple(given)
            shifted[name] = tuple(n + 1 if n >= 0 else n for n in numbers)
    given = options.get("in_shardings")
    if given is not None:
        each = given if isinstance(given, tuple) else (given,) * n_args
        shifted["in_shardings"] = (None, *each)
    if options.get("out_shardings") is not None:
        shifted["out_shardings"] = (options["out_shardings"], None)
    return shifted


def _are_gone(*trees: Any) -> bool:
    """Whether the call has taken the memory of an argument over already."""
    return any(
        isinstance(leaf, jax.Array) and leaf.is_deleted()
        for leaf in jax.tree_util.tree_leaves(trees)
    )
