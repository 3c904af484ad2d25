"""tdbg in Lightning: a callback for ``lightning.pytorch`` and ``pytorch_lightning``.

    from tdbg.integrations.lightning import TdbgCallback

    trainer = L.Trainer(callbacks=[TdbgCallback("runs/digits", rules=["Overfit"])])

The package that was imported before this module is the one it is for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from tdbg.integrations._owner import HookOwner
from tdbg.modes import EVAL, PREDICT, TRAIN, ModeKeys

__all__ = ["TdbgCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_STEPS = {
    "training_step": TRAIN,
    "validation_step": EVAL,
    "test_step": EVAL,
    "predict_step": PREDICT,
}


def _callbacks() -> tuple[type[Any], ...]:
    """The base class, of both packages where both are in use."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    if not loaded:
        found = [n for n in _PACKAGES if importlib.util.find_spec(n.split(".")[0])]
        loaded = found[:1] or [_PACKAGES[0]]  # Whose import says what is missing.
    classes = [importlib.import_module(f"{name}.callbacks").Callback for name in loaded]
    return tuple(dict.fromkeys(classes))


class TdbgCallback(*_callbacks()):  # type: ignore[misc]
    """Captures what a ``Trainer`` does.

    Each ``training_step`` is a forward in training, each ``validation_step`` and
    ``test_step`` one of evaluation (those of the sanity check, too), each
    ``predict_step`` one of prediction, whichever parts of the module they call. What
    they answer is recorded as ``loss_output_0``, whatever is logged as scalars.
    A request to stop sets ``trainer.should_stop``. Checkpoints hold the numbers of
    steps, so that a training resumed from one goes on with them.

    Args:
        out_dir: The run directory.
        **options: Those of ``tdbg.pytorch.Hook``.

    Attributes:
        hook: The hook, while the trainer is at work; otherwise None.

    Raises:
        ConfigurationError: If something asked for can never work.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._owner = HookOwner(out_dir, options)

    @property
    def hook(self) -> Any:
        """The hook, while the trainer is at work; otherwise None."""
        return self._owner.hook

    # ---- the beginning and the end -------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's."""
        self._begin(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's."""
        self._begin(trainer, pl_module)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's."""
        self._begin(trainer, pl_module)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's."""
        self._begin(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Lightning's."""
        self._end(trainer)

    def on_exception(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        exception: BaseException,
    ) -> None:
        """Lightning's."""
        self._end(trainer, exception)

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        if self._owner.hook is not None:
            return
        self._owner.open(pl_module)
        # The strategy calls them, whatever wraps the module, and is never copied.
        for name, mode in _STEPS.items():
            original = getattr(trainer.strategy, name, None)
            if original is not None:
                setattr(trainer.strategy, name, self._wrap(original, mode))

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        self._owner.close(error)
        for name in _STEPS:
            vars(trainer.strategy).pop(name, None)

    def _wrap(self, step: Any, mode: ModeKeys) -> Any:
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
            return result

        return call

    # ---- during it -----------------------------------------------------------

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """Lightning's."""
        # With manual optimization a step answers nothing.
        if self._owner.hook is not None and not pl_module.automatic_optimization:
            self._owner.hook.record_tensor_value("loss", loss)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Lightning's."""
        self._owner.tell_metrics(trainer.callback_metrics, anew=False)
        if self._owner.hook is not None and self._owner.hook.should_stop:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Lightning's."""
        self._owner.tell_metrics(trainer.callback_metrics, anew=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Lightning's."""
        self._evaluated(trainer)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Lightning's."""
        self._evaluated(trainer)

    def _evaluated(self, trainer: Any) -> None:
        self._owner.tell_metrics(trainer.callback_metrics, anew=False)
        if self._owner.hook is not None:
            self._owner.hook.set_mode(None)

    # ---- checkpoints ---------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Lightning's: goes into checkpoints."""
        counters = self._owner.counters()
        return {} if counters is None else {"counters": counters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's: comes out of them."""
        if "counters" in state_dict:
            self._owner.resume(state_dict["counters"])
