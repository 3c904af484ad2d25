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
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tdbg.hooks.pytorch.checks.copies.training_mode import kinds_in
from tdbg.hooks.pytorch.model.mode import evaluating
from tdbg.integrations.owner import HookOwner, TrainerNotes
from tdbg.integrations.watched_metrics import (
    MetricStates,
    MetricWatch,
    MetricWatcher,
    speaks_of_validation,
)
from tdbg.modes import EVAL, PREDICT, TRAIN, ModeKeys
from tdbg.run.observations import Fault

__all__ = ["TdbgCallback", "observe_trainer"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Evaluations with layers in training mode that are no accident.
_ENOUGH = 2
# Batches after which modes of parts are compared.
_LOOKED_AT = 1, 10
_WATCHING = "EarlyStopping", "ModelCheckpoint"
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


class _TrainerChecks(*_callbacks()):  # type: ignore[misc]
    """Looks for mistakes in how a ``Trainer`` and its module were set up.

    Args:
        notes: Takes what is found.
    """

    def __init__(self, notes: TrainerNotes) -> None:
        super().__init__()
        self._notes = notes
        # Layers in training mode in the evaluation under way; evaluations with such.
        self._left_in_training = ""
        self._evaluations_in_training = 0
        self._watch: MetricWatch | None = None
        self._states = MetricStates(notes.observe)
        self._is_validated = False
        # Batches so far, and parts in evaluation mode after the first.
        self._n_batches = 0
        self._asleep: dict[str, list[str]] = {}
        # The weights that a training has left, by the model.
        self._left = (0, 0.0)
        self._last: dict[str, float] = {}
        # Names of validation that a training step has logged.
        self._misnamed: set[str] = set()

    def observe(self, trainer: Any) -> None:
        """Look at the callbacks of a trainer that begins."""
        for each in getattr(trainer, "checkpoint_callbacks", ()):
            monitor = getattr(each, "monitor", None)
            if not getattr(each, "save_top_k", False):
                continue
            if isinstance(monitor, str) and not monitor.startswith("train"):
                self._notes.keeps_best(type(each).__name__, monitor)
        self._watch = MetricWatch(_watchers_in(trainer), self._notes.observe)

    # ---- called by Lightning -------------------------------------------------

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        with contextlib.suppress(Exception):
            self._look_at_tested(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        with contextlib.suppress(Exception):
            metrics = trainer.callback_metrics.items()
            self._last = {name: float(value) for name, value in metrics}
            self._left = id(pl_module), _digest(pl_module)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called by Lightning."""
        del batch
        self._n_batches += 1
        if self._n_batches in _LOOKED_AT:
            with contextlib.suppress(Exception):
                self._look_at_modes(trainer, pl_module)
        if batch_idx == 0 and self._notes.hook is not None:
            with contextlib.suppress(Exception):
                self._look_at_names(trainer, outputs)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Called by Lightning."""
        if not self._is_validated:
            self._look_at_metrics(trainer)

    def on_validation_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called by Lightning."""
        del batch
        if batch_idx == dataloader_idx == 0 and not trainer.sanity_checking:
            with contextlib.suppress(Exception):
                self._states.begins(pl_module)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, *_: Any, **__: Any
    ) -> None:
        """Called by Lightning."""
        del trainer
        if not self._left_in_training:
            with contextlib.suppress(Exception):
                self._left_in_training = kinds_in(pl_module, is_whole=True)

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if not trainer.sanity_checking:
            with contextlib.suppress(Exception):
                self._states.counted(pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if not trainer.sanity_checking:
            self._is_validated = True
            self._look_at_metrics(trainer)
            with contextlib.suppress(Exception):
                self._states.ends(pl_module, (each.value for each in _logged(trainer)))
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
                self._notes.is_evaluated_in_training(name, layers, times)
            self._left_in_training = ""

    def _look_at_metrics(self, trainer: Any) -> None:
        if self._watch is not None and self._notes.hook is not None:
            with contextlib.suppress(Exception):
                metrics, ways = trainer.callback_metrics, _directions(trainer)
                self._watch.evaluated(metrics, ways)

    def _look_at_tested(self, trainer: Any, pl_module: Any) -> None:
        """Look whether the last weights are tested, though better ones were kept."""
        if self._left != (id(pl_module), _digest(pl_module)):
            return
        for each in trainer.checkpoint_callbacks:
            best = getattr(each, "best_model_score", None)
            monitor = getattr(each, "monitor", None)
            last = self._last.get(str(monitor))
            if best is None or last is None:
                continue
            is_worse = last < best if each.mode == "max" else last > best
            if is_worse and getattr(each, "best_model_path", ""):
                numbers = {"best": float(best), "last": last}
                words = {"monitor": str(monitor)}
                name = type(each).__name__
                self._notes.observe(Fault.LAST_IS_TESTED, name, numbers, words)

    def _look_at_modes(self, trainer: Any, pl_module: Any) -> None:
        """Look for parts that learn in evaluation mode, as Lightning leaves them."""
        groups = [g for each in trainer.optimizers for g in each.param_groups]
        trained = {id(p) for g in groups for p in g["params"] if p.requires_grad}
        found = dict(_asleep_in(pl_module, trained)) if pl_module.training else {}
        if self._n_batches == _LOOKED_AT[0]:
            self._asleep = found
            return
        for part in self._asleep.keys() & found.keys():
            numbers = {"layers": float(len(found[part]))}
            words = {"layers": "dropout", "how": "part"}
            self._notes.observe(Fault.TRAINED_IN_EVALUATION, part, numbers, words)

    def _look_at_names(self, trainer: Any, outputs: Any) -> None:
        """Look for what training logs under a name of validation."""
        loop = trainer.fit_loop
        if len(getattr(loop._combined_loader, "flattened", ())) > 1:
            return  # Batches of validation may be among those of training.
        watched = {each.monitor for each in _watchers_in(trainer)}
        for each in loop.epoch_loop._results.values():
            name = each.meta.name
            if name in self._misnamed or not speaks_of_validation(name):
                continue
            self._misnamed.add(name)
            is_loss = _is_loss(each, outputs)
            numbers = {"is_loss": float(is_loss), "watched": float(name in watched)}
            words = {"step": "training_step"}
            self._notes.observe(Fault.LOGGED_AS_VALIDATION, name, numbers, words)


class TdbgCallback(_TrainerChecks):
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
        self._owner = HookOwner(out_dir, options)
        super().__init__(self._owner)

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
        super().on_test_start(trainer, pl_module)

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
        self.observe(trainer)
        # The strategy calls the steps, whatever wraps the module, and is never copied.
        for name, mode in _STEPS.items():
            original = getattr(trainer.strategy, name, None)
            if original is not None:
                call = self._wrap(original, mode)
                setattr(trainer.strategy, name, call)

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
        """Called by Lightning."""
        # With manual optimization a step returns no loss.
        if self._owner.hook is not None and not pl_module.automatic_optimization:
            self._owner.hook.record_tensor_value("loss", loss)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called by Lightning."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._owner.record_metrics(trainer.callback_metrics, are_new=False)
        if self._owner.hook is not None and self._owner.hook.should_stop:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        super().on_train_epoch_end(trainer, pl_module)
        self._owner.record_metrics(trainer.callback_metrics, are_new=False)

    def _evaluated(self, trainer: Any) -> None:
        super()._evaluated(trainer)
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


def observe_trainer(trainer: Any, hook: Any) -> None:
    """Look for mistakes in how a trainer was set up, which a hook captures.

    Args:
        trainer: A ``Trainer`` at work, without a callback of tdbg.
        hook: The hook of ``tdbg run``.
    """
    if any(isinstance(each, TdbgCallback) for each in trainer.callbacks):
        return
    checks = _TrainerChecks(TrainerNotes(hook))
    checks.observe(trainer)
    # One of an earlier training would note in a run that is over.
    others = [each for each in trainer.callbacks if type(each) is not _TrainerChecks]
    trainer.callbacks[:] = [*others, checks]


def _look_at_part(hook: Any, module: Any) -> None:
    """Let checks look at the only part that is trained, if there is one.

    The module itself may never be called, and its copies would hold the trainer.
    """
    parts = [each for each in module.children() if [*each.parameters()]]
    if len(parts) == 1 and not [*module.parameters(recurse=False)]:
        hook._look_at_part(module, parts[0])


def _digest(module: Any) -> float:
    """Return a number that other weights do not have."""
    first = [*module.parameters()][:2]
    return sum(float(each.detach().double().sum()) for each in first)


def _asleep_in(root: Any, trained: set[int]) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts in evaluation mode whose dropout and parameters would train.

    What has normalizations alone is left in this mode on purpose.
    """
    modules = dict(root.named_modules())
    for path, part in modules.items():
        above = modules.get(path.rpartition(".")[0], root)
        if part.training or not above.training:
            continue
        layers = evaluating(part, trained, set())
        kinds = [type(part.get_submodule(each)).__name__ for each in layers]
        if any("Drop" in kind for kind in kinds) and any(part.children()):
            yield path, layers


def _watchers_in(trainer: Any) -> Iterator[MetricWatcher]:
    """Yield the callbacks of Lightning that do something by a metric."""
    for each in trainer.callbacks:
        kinds = {k.__name__ for k in type(each).__mro__ if "lightning" in k.__module__}
        kind = next((one for one in _WATCHING if one in kinds), "")
        monitor, mode = getattr(each, "monitor", None), getattr(each, "mode", None)
        # What keeps all, or none, keeps them by no metric.
        is_keen = getattr(each, "save_top_k", 1) not in {0, -1}
        if kind and is_keen and isinstance(monitor, str) and mode in {"min", "max"}:
            other = "max" if mode == "min" else "min"
            how = f'Set mode="{other}" in {type(each).__name__}: its default is "min".'
            yield MetricWatcher(type(each).__name__, kind, monitor, mode, how)


def _directions(trainer: Any) -> dict[str, bool]:
    """Return which way metrics go, where they are objects that say so."""
    found = {}
    for each in _logged(trainer):
        way = getattr(each.value, "higher_is_better", None)
        if isinstance(way, bool):
            found[each.meta.name] = way
    return found


def _logged(trainer: Any) -> Iterator[Any]:
    """Yield what a validation has logged, and that is computed at its end."""
    for loop in (trainer.validate_loop, trainer.fit_loop.epoch_loop.val_loop):
        for each in (getattr(loop, "_results", None) or {}).values():
            if each.meta.on_epoch:
                yield each


def _is_loss(logged: Any, outputs: Any) -> bool:
    """Return whether a step has logged the loss that it returned."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not torch.is_tensor(loss) or not torch.is_tensor(logged.value):
        return False
    count = logged.cumulated_batch_size if logged.meta.is_mean_reduction else 1
    return bool(torch.isclose(logged.value / count, loss.detach().to(logged.value)))
