"""``smdebug.tensorflow.keras``: a hook of Keras with smdebug's arguments and methods.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.compat.smdebug.core.base import del_hook, set_hook
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.framework_hook import SmdebugHook, getter
from tdbg.compat.smdebug.left_out import PAGE
from tdbg.compat.smdebug.tensorflow.collection import CollectionManager
from tdbg.config.collections import Role
from tdbg.hooks.keras.hook import Hook as FitHook
from tdbg.hooks.keras.names import role_of_parameter
from tdbg.hooks.tensorflow.loops import Loops
from tdbg.modes import TRAIN, ModeKeys

__all__ = [
    "DEFAULT_INCLUDE_COLLECTIONS",
    "KerasHook",
    "del_hook",
    "get_hook",
    "set_hook",
]

DEFAULT_INCLUDE_COLLECTIONS = [
    CollectionKeys.METRICS,
    CollectionKeys.LOSSES,
    CollectionKeys.SM_METRICS,
]
_METHODS = {
    "add_to_collection": "use hook.get_collection(name).include(names)",
    "profiler": "tdbg has no profiler",
    "save_tape_logs": "use hook.register_model, which captures layers",
    "set_gradients": "gradients are those that the optimizer is given",
    "set_optimizer_variables": "they are found by the optimizer",
    "should_save_layer": "what is captured is said by collections",
}
_log = logging.getLogger("tdbg")


class KerasHook(SmdebugHook, FitHook):
    """Captures trainings by ``fit`` and loops with tapes; by default only losses.

    Its arguments are those of ``SmdebugHook``.
    """

    _make_manager = staticmethod(lambda: CollectionManager(create_default=True))
    _by_default = tuple(DEFAULT_INCLUDE_COLLECTIONS)
    _instead = _METHODS

    def _attach(self, session: Session) -> CurrentMode:
        mode = super()._attach(session)
        self._loops = Loops(session, self._backend)
        self._loop_models: list[Any] = []
        self._loop_optimizers: list[Any] = []
        self._has_warned = False
        return mode

    def _detach(self) -> None:
        self._loops.close()
        super()._detach()

    # ---- loops -----------------------------------------------------------------

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Capture the steps of an optimizer in a loop; nothing is needed for ``fit``.

        Returns:
            The optimizer itself.
        """
        if not any(each is optimizer for each in self._loop_optimizers):
            self._loop_optimizers.append(optimizer)
            if self._loop_models:
                self._loops.register_optimizer(optimizer)
        return optimizer

    def register_model(self, model: Any) -> None:
        """Capture the layers of a model that a loop trains, and all its gradients.

        Call it before the first call of a function that ``tf.function`` compiles.

        Raises:
            ConfigurationError: If it is no model of Keras on TensorFlow.
        """
        self._loops.register(model)
        self._loop_models.append(model)
        if len(self._loop_models) == 1:
            for optimizer in self._loop_optimizers:
                self._loops.register_optimizer(optimizer)

    def register_loss(self, loss: Any) -> None:
        """Capture a loss object of a loop: labels, predictions, and what it computes.

        Raises:
            ConfigurationError: If it is a function, or no model is registered.
        """
        self._loops.register_loss(loss)

    def wrap_tape(self, tape: Any) -> Any:
        """Capture what a tape is asked for: the loss, gradients and their variables.

        Each call of ``tape.gradient`` is a step, unless an optimizer that was wrapped
        steps after it. Of a model that was registered the loss alone is captured here.

        Returns:
            The tape itself.
        """
        gradient = tape.gradient

        def shown(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            result = gradient(target, sources, *args, **kwargs)
            self._session.run(self._tape_asked, target, sources, result)
            return result

        tape.gradient = shown
        return tape

    def set_mode(self, mode: ModeKeys | None) -> None:
        """Set the mode; None: follow what is called.

        Raises:
            ConfigurationError: If *mode* is not a mode.
        """
        super().set_mode(mode)
        self._loops.mode.say(mode)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Record a value, as *tensor_name* alone: a loss if its name says so."""
        self._session.run(self._record_named, tensor_name, tensor_value)

    def _record_named(self, name: str, value: Any) -> None:
        role = Role.LOSS if "loss" in name.lower() else Role.OTHER
        given = value if self._adapter.is_tensor(value) else None
        self._session.record(self._loops.mode.now(), name, role, given)

    def _tape_asked(self, target: Any, sources: Any, result: Any) -> None:
        tf: Any = import_module("tensorflow")
        if not tf.executing_eagerly():
            if not self._has_warned and not self._loop_models:
                self._has_warned = True
                _log.warning(
                    "wrap_tape shows nothing of a tape in a tf.function: call "
                    "hook.register_model(model) and hook.wrap_optimizer(optimizer) "
                    "before the function is compiled (%s)",
                    PAGE,
                )
            return
        steps, session = self._loops.steps, self._session
        context = steps.training() if self._loop_models else steps.begin_forward(TRAIN)
        if context is None or not context.takes:
            return
        entry = session.entry("loss", Role.LOSS)
        session.capture(context, entry, target)
        if self._loop_models:
            return
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(result), strict=False)
        for variable, given in pairs:
            path = getattr(variable, "path", None) or getattr(variable, "name", "")
            if not path or not hasattr(variable, "assign"):
                continue
            name = path.partition(":")[0]
            role = role_of_parameter(name)
            weight = session.entry(name, role)
            session.capture(context, weight, tf.convert_to_tensor(variable))
            if given is not None:
                entry = session.entry(f"gradient/{name}", Role.GRADIENT)
                session.capture(context, entry, given)


get_hook = getter(KerasHook)
