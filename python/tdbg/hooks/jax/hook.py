"""``Hook``: what users of JAX make, and compile their steps with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.capture.step_clock import STEP_OF
from tdbg.config import HookConfig
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.jax.adapter import JaxAdapter
from tdbg.hooks.jax.arguments import ArgumentReader
from tdbg.hooks.jax.facts import ModelFacts
from tdbg.hooks.jax.interception import imported_interceptors, interceptor_of
from tdbg.hooks.jax.jit import JitStep
from tdbg.hooks.jax.kinds import kind_of_name
from tdbg.hooks.jax.sites import Sites
from tdbg.hooks.jax.step_capture import LOSS, StepCapture
from tdbg.hooks.jax.waits import Waits
from tdbg.modes import ModeKeys

__all__ = ["Hook", "del_hook", "find_loss", "get_hook", "set_hook", "watch"]

_LOSS = "loss"
# A step returns (state, (loss, metrics)), and nothing deeper.
_DEPTH = 2


def find_loss(outputs: Any, depth: int = _DEPTH) -> Any:
    """Return the first number with a fraction that a step returns; None: there is none.

    That is the output itself; the first such element of a tuple, as of
    ``(params, opt_state, loss)``, ``(loss, aux)`` or ``(state, (loss, aux))``; or what
    a mapping has as ``loss``. States of optimizers are not searched.

    Example:
        >>> float(find_loss(({"w": np.ones(2)}, (np.float32(0.5), "aux"))))
        0.5
    """
    if _is_number(outputs):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get(_LOSS)
        return found if _is_number(found) else None
    if depth and isinstance(outputs, tuple | list) and not hasattr(outputs, "_fields"):
        at_once = (each for each in outputs if _is_number(each))
        within = (find_loss(each, depth - 1) for each in outputs)
        return next(at_once, next((each for each in within if each is not None), None))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return True
    is_array = isinstance(value, jax.Array | np.ndarray) and value.ndim == 0
    return is_array and bool(jax.numpy.issubdtype(value.dtype, jax.numpy.floating))


class Hook(FrameworkHook):
    """Captures a training in JAX; losses unless told otherwise.

        hook = tj.Hook("runs/x", include_collections=["weights", "gradients"])
        tx = tj.optax(optax.adam(1e-3))
        step = hook.jit(train_step, donate_argnums=(0, 1))

    Its arguments are those of ``HookBase``: docs/configuration.md. docs/jax.md says
    what is captured where.
    """

    _precise = False  # Of a copy, which has no configuration.

    def _make_adapter(self) -> JaxAdapter:
        self._jax = JaxAdapter()
        return self._jax

    def _make_policy(self, config: HookConfig) -> Policy:
        self._precise = config.precise
        return super()._make_policy(config)

    def _attach(self, session: Session) -> CurrentMode:
        session.forward_of = STEP_OF
        mode = CurrentMode(session)
        self._sites = Sites(session, precise=self._precise)
        self._facts = ModelFacts(session.observe)
        self._capture = StepCapture(
            session,
            self._sites,
            self._facts,
            ModelInfoWriter(session, self._facts),
            mode.now,
        )
        session.listen(change=self._sites.refresh)
        return mode

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        super()._start_profiler(session, settings)
        self._capture.waits = Waits(session)

    def _detach(self) -> None:
        self._session.run(self._capture.model_info.conclude)

    # ---- registration ----------------------------------------------------------

    def jit(
        self,
        function: Callable[..., Any] | None = None,
        *,
        mode: ModeKeys | None = None,
        loss: Callable[[Any], Any] = find_loss,
        loss_kind: str = "",
        params: Callable[..., Any] | None = None,
        jit: Callable[..., Any] = jax.jit,
        **options: Any,
    ) -> Any:
        """Compile a step and capture it; one call is one step of the training.

            step = hook.jit(train_step, donate_argnums=(0, 1))
            evaluate = hook.jit(eval_step, mode=ModeKeys.EVAL)

        The function is compiled as ``jax.jit`` does, and runs so in steps that capture
        nothing inside of it. For steps that do it is compiled again with taps.

        Args:
            function: A function of pytrees; None: this is a decorator.
            mode: Of its steps; None: TRAIN, or what ``hook.set_mode`` says.
            loss: Returns the loss from what the function returns, or None; by default
                its first number (``find_loss``): ``loss``,
                ``(loss, aux)``, ``(params, opt_state, loss)``.
            loss_kind: What the loss computes, as of ``tdbg.config.kinds``, such as
                "cross_entropy", for rules that ask.
            params: Returns the pytree of the parameters from the arguments of the
                function; None: it is found (docs/jax.md).
            jit: What compiles: ``jax.jit``, ``flax.nnx.jit``, ``equinox.filter_jit``.
            options: Arguments for it: ``donate_argnums``, ``static_argnums``, ...

        Returns:
            The compiled function. Calling it raises TrainingStopped if somebody asked
            for a stop; ``plain`` is the function as compiled without tdbg.

        Raises:
            ConfigurationError: If the function cannot be called, or *loss_kind* is no
                kind.
        """
        if function is None:
            return lambda decorated: self.jit(
                decorated,
                mode=mode,
                loss=loss,
                loss_kind=loss_kind,
                params=params,
                jit=jit,
                **options,
            )
        given: object = function
        if not callable(given):
            msg = f"hook.jit needs a function, not {given!r}"
            raise ConfigurationError(msg)
        kind = kind_of_name(loss_kind)
        if loss_kind and kind is None:
            msg = (
                f"loss_kind={loss_kind!r} is not a kind of loss: use one of "
                f"tdbg.config.kinds, such as 'cross_entropy'"
            )
            raise ConfigurationError(msg)
        self._facts.add_loss(LOSS, kind)
        return JitStep(
            function, mode, self._capture, loss, ArgumentReader(params), jit, options
        )

    def watch(self, model: Any) -> None:
        """Capture what modules of a model are given and return, inside the steps.

        Those of Linen by the paths that Linen gives them; those of NNX and Equinox
        where a step is called with the model. The activation functions of ``jax.nn``
        that they call are captured, too. A subclass of each module's class is made for
        the length of a trace; afterwards everything is as it was.

        Args:
            model: A module of Flax Linen, of Flax NNX or of Equinox.

        Raises:
            ConfigurationError: If it is none.
        """
        interceptor = interceptor_of(model)
        if interceptor is None:
            msg = (
                f"watch needs a Flax or Equinox module, not "
                f"{type(model).__name__}: use `tap` inside the step"
            )
            raise ConfigurationError(msg)
        self._facts.add_model(type(model).__name__)
        self._capture.interception.add(interceptor)

    def watch_imported(self) -> None:
        """Capture modules of each library that is imported, as ``watch`` those of one.

        For programs that do not say which model they train.
        """
        for interceptor in imported_interceptors():
            self._capture.interception.add(interceptor)


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook


def watch(model: Any) -> Hook:
    """``Hook.watch`` of the hook of this process.

    Returns:
        The hook.

    Raises:
        ConfigurationError: If there is none, or the model is none of Flax or Equinox.
    """
    hook = _process_hook.current()
    if hook is None:
        msg = "watch needs a hook: create one first, as in hook = tj.Hook('runs/x')"
        raise ConfigurationError(msg)
    hook.watch(model)
    return hook
