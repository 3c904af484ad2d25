"""tdbg in Lightning: a callback for ``lightning.pytorch`` and ``pytorch_lightning``.

    from tdbg.integrations.lightning import TdbgCallback

    trainer = L.Trainer(callbacks=[TdbgCallback("runs/digits", rules=["Overfit"])])

The package that was imported before this module is the one it is for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from tdbg.hooks.pytorch.checks.copies.training_mode import kinds_in
from tdbg.integrations.owner import HookOwner
from tdbg.modes import EVAL, PREDICT, TRAIN, ModeKeys

__all__ = ["TdbgCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Evaluations with layers in training mode that are no accident.
_ENOUGH = 2
_STEPS = {
    "training_step": TRAIN,
    "validation_step": EVAL,
    "test_step": EVAL,
    "predict_step": PREDICT,
}


def _callbacks() -> tuple[type[Any], ...]:
    """Find the base classes: of each package of Lightning that is in use."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    if not loaded:
        found = [n for n in _PACKAGES if importlib.util.find_spec(n.split(".")[0])]
        loaded = found[:1] or [_PACKAGES[0]]  # Its import raises, and says why.
    classes = [importlib.import_module(f"{name}.callbacks").Callback for name in loaded]
    return tuple(dict.fromkeys(classes))


class TdbgCallback(*_callbacks()):  # type: ignore[misc]
    """Captures what a ``Trainer`` does.

    Each ``training_step`` is a forward in training, each ``validation_step`` and
    ``test_step`` one of evaluation (also in the sanity check), each ``predict_step``
    one of prediction, whichever parts of the module they call. The loss that they
    return is recorded as ``loss_output_0``, and what the module logs as scalars. A
    request to stop sets ``trainer.should_stop``. Checkpoints hold the counters of
    steps, with which a resumed training continues.

    Args:
        out_dir: The run directory.
        **options: Options of ``tdbg.pytorch.Hook``.

    Attributes:
        hook: The hook, while the trainer is at work; otherwise None.

    Raises:
        ConfigurationError: If an option can never work.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._owner = HookOwner(out_dir, options)
        # Layers in training mode in the evaluation under way; evaluations with such.
        self._left_in_training = ""
        self._evaluations_in_training = 0

    @property
    def hook(self) -> Any:
        """The hook, while the trainer is at work; otherwise None."""
        return self._owner.hook

    # ---- the beginning and the end -------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._begin(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._begin(trainer, pl_module)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._begin(trainer, pl_module)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        self._begin(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Called by Lightning."""
        self._end(trainer)

    def on_exception(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        exception: BaseException,
    ) -> None:
        """Called by Lightning."""
        self._end(trainer, exception)

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        if self._owner.hook is not None:
            return
        hook = self._owner.open(pl_module)
        with contextlib.suppress(Exception):
            _look_at_part(hook, pl_module)
        for each in getattr(trainer, "checkpoint_callbacks", ()):
            monitor = getattr(each, "monitor", None)
            if not getattr(each, "save_top_k", False):
                continue
            if isinstance(monitor, str) and not monitor.startswith("train"):
                self._owner.keeps_best(type(each).__name__, monitor)
        # The strategy calls the steps, whatever wraps the module, and is never copied.
        for name, mode in _STEPS.items():
            original = getattr(trainer.strategy, name, None)
            if original is not None:
                call = self._wrap(original, mode, pl_module)
                setattr(trainer.strategy, name, call)

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        self._owner.close(error)
        for name in _STEPS:
            vars(trainer.strategy).pop(name, None)

    def _wrap(self, step: Any, mode: ModeKeys, pl_module: Any) -> Any:
        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            hook = self._owner.hook
            if hook is None:
                return step(*args, **kwargs)
            hook.set_mode(mode)
            with hook.forward_pass():
                result = step(*args, **kwargs)
            loss = result.get("loss") if isinstance(result, Mapping) else result
            if mode is not PREDICT and torch.is_tensor(loss) and loss.numel() == 1:
                hook.record_tensor_value("loss", loss)
            if mode is EVAL and not self._left_in_training:
                with contextlib.suppress(Exception):
                    self._left_in_training = kinds_in(pl_module, is_whole=True)
            return result

        return call

    # ---- during it -----------------------------------------------------------

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """Called by Lightning."""
        # With manual optimization a step returns no loss.
        if self._owner.hook is not None and not pl_module.automatic_optimization:
            self._owner.hook.record_tensor_value("loss", loss)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Called by Lightning."""
        self._owner.record_metrics(trainer.callback_metrics, are_new=False)
        if self._owner.hook is not None and self._owner.hook.should_stop:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Called by Lightning."""
        self._owner.record_metrics(trainer.callback_metrics, are_new=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Called by Lightning."""
        self._evaluated(trainer)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Called by Lightning."""
        self._evaluated(trainer)

    def _evaluated(self, trainer: Any) -> None:
        if self._left_in_training:
            self._evaluations_in_training += 1
            if self._evaluations_in_training == _ENOUGH:
                name = type(trainer.lightning_module).__name__
                layers, times = self._left_in_training, self._evaluations_in_training
                self._owner.is_evaluated_in_training(name, layers, times)
            self._left_in_training = ""
        self._owner.record_metrics(trainer.callback_metrics, are_new=False)
        if self._owner.hook is not None:
            self._owner.hook.set_mode(None)

    # ---- checkpoints ---------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the counters that Lightning puts into checkpoints."""
        counters = self._owner.counters()
        return {} if counters is None else {"counters": counters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the counters that Lightning has read from a checkpoint."""
        if "counters" in state_dict:
            self._owner.resume(state_dict["counters"])


def _look_at_part(hook: Any, module: Any) -> None:
    """Let checks look at the only part that is trained, if there is one.

    The module itself may never be called, and its copies would hold the trainer.
    """
    parts = [each for each in module.children() if [*each.parameters()]]
    if len(parts) == 1 and not [*module.parameters(recurse=False)]:
        hook._look_at_part(module, parts[0])
