"""A step in two variants: the user's own, and one with taps.

A step that captures nothing runs the user's function as ``jax.jit`` compiles it. The
variant with taps is compiled when the first step that captures is due; which of both
runs is decided in Python, by the number of the step.

Thread safety: the training's thread.

Errors: nothing of tdbg raises into the training but ``TrainingStopped``. Where the
variant with taps cannot be compiled, it is given up, and the plain one runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from tdbg.capture.light_steps import LightSteps
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.config.collections import Role
from tdbg.hooks.jax.argument_taps import ArgumentTaps
from tdbg.hooks.jax.arguments import ArgumentReader, Arguments
from tdbg.hooks.jax.primitive import when_done
from tdbg.hooks.jax.step_capture import Execution, StepCapture
from tdbg.modes import TRAIN, TRAINING, ModeKeys

__all__ = ["JitStep"]

_log = logging.getLogger("tdbg")
# Arguments of jax.jit that number the arguments of the function.
_POSITIONS = ("donate_argnums", "static_argnums")
_TICKET = "tdbg_ticket"


class JitStep:
    """A function that is compiled, and captured when its steps are due.

    Args:
        function: The user's.
        mode: Of its steps; None: the hook's.
        capture: Of the hook.
        loss: Returns the loss of what the function returns.
        reader: Finds the parameters among the arguments.
        jit: Compiles: ``jax.jit``, ``nnx.jit`` or ``equinox.filter_jit``.
        options: Given to it.

    Attributes:
        plain: The function as ``jit`` compiles it, without tdbg.
        n_traces: How often the variant with taps was traced.
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
        functools.update_wrapper(self, function)
        self._function = function
        self._mode = mode
        self._capture = capture
        self._loss = loss
        self._reader = reader
        self._options = dict(options)
        self._jit = jit
        self.plain = jit(function, **options)
        self._captured: Callable[..., Any] | None = None
        self._arguments: ArgumentTaps | None = None  # Of the variant with taps.
        # Of what is captured at a step whose arguments need not be looked at, and how
        # often the variant had been traced then: nothing is captured of them but what
        # the program shows.
        self._shows_all: tuple[StepPlan, int] | None = None
        self._revision = capture.revision  # Of the taps that were traced.
        self._is_given_up = False
        # While nothing but the loss is captured: the steps since the last event.
        self._light: LightSteps | None = None
        self.n_traces = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        capture, session = self._capture, self._capture.session
        if not session.is_live:
            return self.plain(*args, **kwargs)
        mode = capture.mode() if self._mode is None else self._mode
        light = self._light
        if light is not None:
            if mode is TRAIN and light.goes_on():
                return self._run_light(light, args, kwargs)
            self._light = None
        context = session.run(session.forward_begins, id(self), mode)
        execution: Execution | None = None
        try:
            if context is not None and context.takes and capture.is_due(context):
                execution = self._prepare(context, args, kwargs)
            if execution is None:
                outputs = self.plain(*args, **kwargs)
            else:
                outputs = self._run(execution, args, kwargs)
        except BaseException:
            session.run(session.forward_lost)
            raise
        session.run(self._end, context, mode, outputs)
        if mode is TRAIN and execution is None:
            self._light = session.run(self._begin_light, outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        """What ``jax.jit`` gives a function (``lower``, ``trace``): that of `plain`."""
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    # ---- a call ------------------------------------------------------------------

    def _run_light(
        self, light: LightSteps, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a step of which nothing but the loss is captured, as the one before."""
        try:
            outputs = self.plain(*args, **kwargs)
        except BaseException:
            self._light = None
            self._capture.session.run(self._fail)
            raise
        light.add(outputs)
        return outputs

    def _fail(self) -> None:
        session = self._capture.session
        session.forward_begins(id(self), TRAIN)
        session.forward_lost()

    def _begin_light(self, outputs: Any) -> LightSteps | None:
        """Begin to count steps that capture nothing but the loss; None: there are none.

        Args:
            outputs: Those of the step before.
        """
        capture = self._capture
        can_read, read = capture.loss_reader(self._loss, outputs)
        if not can_read:
            return None
        return LightSteps.begin(
            capture.session,
            id(self),
            id(self),
            TRAIN,
            read=read,
            ended=capture.model_info.steps_ended,
        )

    def _prepare(
        self, context: StepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Execution | None:
        """Take what the step is called with; return what its taps are to show."""
        execution = self._open(context)
        plan = context.step_plan
        program_shows = execution is not None and execution.arguments is not None
        if program_shows and self._shows_all == (plan, self.n_traces):
            return execution
        capture, session = self._capture, self._capture.session
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

    def _open(self, context: StepContext) -> Execution | None:
        """Return the execution of a step with taps; None: it runs without."""
        capture, session = self._capture, self._capture.session
        if context.step_plan.is_light:
            return None
        if self._is_given_up:
            session.run(session.refuse, context)
            return None
        if self._revision != capture.revision:
            self._revision = capture.revision
            self._captured = self._arguments = None
        return session.run(capture.open, context, self._arguments)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        with_states = self._capture.session.may_capture(Role.OPTIMIZER_STATE)
        return self._reader.read(args, kwargs, with_states=with_states)

    def _run(
        self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the variant with taps, or the plain one where that cannot be compiled."""
        n_traces = self.n_traces
        if self._captured is None:
            self._arguments = ArgumentTaps()
            self._captured = self._compile(args, self._arguments)
        self._capture.execution = execution
        try:
            outputs, done = self._captured(execution.operand(), *args, **kwargs)
        except Exception as error:
            self._capture.close(execution)
            if self.n_traces == n_traces or _are_gone(args, kwargs):
                raise  # It was compiled before: the error is the training's own.
            outputs = self.plain(*args, **kwargs)  # Raises if it is its own after all.
            self._give_up(error)
            return outputs
        finally:
            self._capture.execution = None
        self._capture.session.run(self._capture.expect, execution, done)
        return outputs

    def _end(self, context: StepContext | None, mode: ModeKeys, outputs: Any) -> None:
        capture, session = self._capture, self._capture.session
        if context is not None:
            capture.record_loss(context, self._loss(outputs))
        session.forward_ends()
        if mode in TRAINING:
            session.optimizer_begins(id(self), lambda: mode)
            capture.model_info.optimizer_stepped()
            session.optimizer_ends(id(self))

    def _give_up(self, error: Exception) -> None:
        self._is_given_up = True
        _log.warning(
            "the step %s cannot be compiled with taps, and runs without: %s: %s",
            getattr(self, "__name__", "of the training"),
            type(error).__name__,
            error,
        )

    # ---- the variant with taps ---------------------------------------------------

    def _compile(
        self, args: tuple[Any, ...], arguments: ArgumentTaps
    ) -> Callable[..., Any]:
        """Make the variant with taps, which has the ticket as a further argument.

        Args:
            args: Positional ones of a call.
            arguments: Receives those that the variant shows.
        """
        function, capture = self._function, self._capture

        def shown(ticket: Any, args: Any, kwargs: Any) -> Any:
            found = self._read(args, kwargs)
            return capture.show_arguments(arguments, found, ticket)

        def captured(ticket: Any, *args: Any, **kwargs: Any) -> Any:
            self.n_traces += 1
            after = capture.session.run(shown, ticket, args, kwargs)
            ticket = ticket if after is None else after
            with capture.tracing(ticket, (args, kwargs)) as restored:
                outputs = restored(function(*args, **kwargs))
            return outputs, when_done(ticket)

        with contextlib.suppress(TypeError, ValueError):  # Of a builtin, say.
            signature = inspect.signature(function)
            first = inspect.Parameter(_TICKET, inspect.Parameter.POSITIONAL_ONLY)
            captured.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=[first, *signature.parameters.values()]
            )
        captured.__name__ = getattr(function, "__name__", "step")
        options = _shifted(self._options, len(args))
        compiled: Callable[..., Any] = self._jit(captured, **options)
        return compiled


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
