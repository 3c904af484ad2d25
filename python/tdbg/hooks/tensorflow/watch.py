"""``watch``: captures trainings that apply the gradients of tapes by themselves.

What models, their layers and losses are given and return is seen by replacing their
calls on the instances (``forwards.py``), gradients by replacing ``optimizer.apply``
(``optimizers.py``); no tape is touched.  In a function that ``tf.function`` has
traced, reports are put into the graph (``reports.py``).  ``Hook.function`` makes a
function with two variants instead, which XLA may compile (``compiled.py``).

Thread safety: the training's thread; graphs report from threads of TensorFlow, one
step after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.config import resolve
from tdbg.config.options import AUTO, is_disabled
from tdbg.config.profiler import ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.keras.adapter import KerasAdapter
from tdbg.hooks.keras.backend import Backend, backend_of_keras
from tdbg.hooks.tensorflow.loops import Loops
from tdbg.modes import ModeKeys

_WATCHED = ("weights", "biases", "gradients", "losses", "outputs", "scalars")

__all__ = ["Hook", "del_hook", "get_hook", "set_hook", "watch"]


class Hook(FrameworkHook):
    """Captures loops with tapes; its arguments are those of ``HookBase``.

    ``register`` says of which model.  ``watch`` does both.
    """

    def _make_adapter(self) -> FrameworkAdapter:
        self._backend: Backend | None = None
        if is_disabled():
            return KerasAdapter(None)
        self._backend = backend_of_keras()
        return KerasAdapter(self._backend)

    def _attach(self, session: Session) -> CurrentMode:
        self._loops = Loops(session, self._backend)
        return self._loops.mode

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        super()._start_profiler(session, settings)
        self._loops.time_calls()

    def _detach(self) -> None:
        self._loops.close()

    # ---- registration ----------------------------------------------------------

    def register(self, model: Any, optimizer: Any = None, *, loss: Any = None) -> None:
        """Capture a model of Keras, and the steps that an optimizer makes of it.

        Call it before the first call of a function that ``tf.function`` compiles.

        Args:
            model: The model; a training may have several.
            optimizer: The optimizer that is given the gradients; None: it is
                registered later (``register_optimizer``), or there is none.
            loss: As of ``register_loss``.

        Raises:
            ConfigurationError: If the backend of Keras is not TensorFlow, these are no
                model and no optimizer of Keras, or the model was made under a strategy
                of several processes.
        """
        self._loops.register(model, optimizer, loss=loss)

    def register_optimizer(
        self, optimizer: Any, *, model: Any = None, defines_step: bool = False
    ) -> None:
        """Capture the steps that an optimizer makes.

        Args:
            optimizer: The optimizer of Keras.
            model: Which of the registered models it trains; None: the latest.
            defines_step: Whether a step of the training ends when this one has
                stepped; otherwise that is the first one that steps.

        Raises:
            ConfigurationError: If it is no optimizer, or the model is not registered.
        """
        self._loops.register_optimizer(
            optimizer, model=model, defines_step=defines_step
        )

    def register_loss(self, loss: Any, *, model: Any = None) -> None:
        """Capture what a loss object is given, and what it computes.

        Args:
            loss: A loss of Keras, or an object with ``__call__(labels, predictions)``.
            model: Which of the registered models it belongs to; None: the latest.

        Raises:
            ConfigurationError: If it is a function, which can only be wrapped, or the
                model is not registered.
        """
        self._loops.register_loss(loss, model=model)

    def wrap_loss(self, loss: Callable[..., Any], *, model: Any = None) -> Any:
        """Return a function that computes a loss, and is captured.

            loss_of = hook.wrap_loss(keras.losses.mean_squared_error)

        Args:
            loss: A function of labels and predictions, in this order.
            model: As of ``register_loss``.

        Raises:
            ConfigurationError: If it cannot be called, or the model is not registered.
        """
        return self._loops.wrap_loss(loss, model=model)

    def function(
        self,
        function: Callable[..., Any] | None = None,
        *,
        mode: ModeKeys | None = None,
        **options: Any,
    ) -> Any:
        """Compile a step as ``tf.function`` does, and capture it, under XLA, too.

            @hook.function(jit_compile=True)
            def step(x, y): ...

        Steps that capture nothing inside run the function as ``tf.function`` makes it.
        For the others it is compiled again, with what is captured as further outputs.
        The loss of each step is the first number with a fraction that is returned.

        Args:
            function: The function, of tensors; None: this is a decorator.
            mode: Of its steps, one for each call; None: TRAIN, or that of
                ``set_mode``.
            options: Arguments of ``tf.function``.

        Returns:
            The compiled function. Calling it raises TrainingStopped if somebody asked
            for a stop; ``plain`` is the function as compiled without tdbg.

        Raises:
            ConfigurationError: If the function cannot be called, or there is no model.
        """
        return self._loops.function(function, mode=mode, **options)

    def await_optimizer(self) -> None:
        """Let no forward end a step before an optimizer is registered."""
        self._loops.steps.await_optimizer()

    def model_with(self, variables: Iterable[Any]) -> Any:
        """The registered model that has most of these variables; None: none has any."""
        return self._loops.model_with(variables)


def watch(
    model: Any,
    optimizer: Any,
    *,
    loss: Any = None,
    out: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> Hook:
    """Capture a training that applies the gradients of tapes.

        hook = tdbg.tensorflow.watch(model, optimizer, loss=loss, out="runs/tape")

    tdbg captures weights, biases, gradients and the outputs of all layers at every
    tenth step, losses at every step, and the optimizer's numbers (learning rate, ...)
    when they change, along with everything that the default rules need, and spends at
    most 5 % of the training's time. What you ask for with *include_collections*,
    *save_all* or *rules* is captured instead.

    Args:
        model: The model of Keras; its variables and layers have names.
        optimizer: The optimizer of Keras that is given the gradients.
        loss: The loss object that is given labels and predictions; None: losses,
            labels and predictions are not captured, unless you register it later. A
            function is wrapped by ``Hook.wrap_loss``.
        out: The run directory.
        arguments: Those of ``Hook``.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """
    given = {"out_dir": out, **arguments}
    is_chosen = arguments.keys() & {"include_collections", "save_all", "rules"}
    hook = Hook._made(lambda: resolve(given, {} if is_chosen else _of_watch()))
    try:
        hook.register(model, optimizer, loss=loss)
    except ConfigurationError:
        hook.close()
        raise
    return hook


def _of_watch() -> dict[str, Any]:
    """Return the defaults of ``watch``."""
    from tdbg.rules import default_rules

    return {
        "include_collections": _WATCHED,
        "rules": default_rules(),
        "budget": AUTO,
    }


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
