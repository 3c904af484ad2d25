"""tdbg in Hugging Face transformers: a callback for its ``Trainer``.

from tdbg.integrations.transformers import TdbgCallback

trainer = Trainer(model, args, callbacks=[TdbgCallback("runs/bert")], ...)
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from transformers.trainer_callback import TrainerCallback

from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots, unscaled
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.integrations.owner import HookOwner, TrainerNotes
from tdbg.integrations.watched_metrics import MetricWatch, MetricWatcher
from tdbg.pytorch import Hook
from tdbg.run.directory import read_small_file

__all__ = ["TdbgCallback", "observe_trainer"]

COUNTERS_FILE = "tdbg.json"


class _TrainerChecks(TrainerCallback):
    """Looks for mistakes in what a ``Trainer`` was told to keep.

    Args:
        notes: Takes what is found.
    """

    def __init__(self, notes: TrainerNotes) -> None:
        super().__init__()
        self._notes = notes
        self._watch = MetricWatch((), notes.observe)

    def observe(self, args: Any) -> None:
        """Look at the arguments of a training that begins."""
        if getattr(args, "load_best_model_at_end", False):
            monitor = getattr(args, "metric_for_best_model", None)
            self._notes.keeps_best(type(args).__name__, str(monitor or "loss"))
        self._watch = MetricWatch(_watchers_in(args), self._notes.observe)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        del args, state, control
        with contextlib.suppress(Exception):
            self._watch.evaluated(metrics or {}, {})


class TdbgCallback(_TrainerChecks):
    """Captures the training of a ``Trainer``, from its beginning to its end.

    The mode follows ``model.training``, as the trainer sets it. The loss in the model's
    output, or else the root of the backward pass, is recorded as ``loss_output_0``, and
    what the trainer logs as scalars. A request to stop sets
    ``control.should_training_stop``. Each checkpoint has a file ``tdbg.json`` with
    the counters of steps, with which a resumed training continues.

    Args:
        out_dir: The run directory.
        **options: Options of ``tdbg.pytorch.Hook``.

    Attributes:
        hook: The hook, while the trainer trains; otherwise None.

    Raises:
        ConfigurationError: If an option can never work.
    """

    def __init__(self, out_dir: str | os.PathLike[str], **options: Any) -> None:
        self._owner = HookOwner(out_dir, options)
        super().__init__(self._owner)
        self._losses: _Losses | None = None

    @property
    def hook(self) -> Any:
        """The hook, while the trainer trains; otherwise None."""
        return self._owner.hook

    def on_train_begin(  # noqa: D102 - called by the trainer
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        del control
        model: nn.Module = kwargs["model"]
        self._close()  # An exception may have ended the training before.
        self._owner.resume(_counters(args, state.global_step))
        hook = self._owner.open(model)
        self.observe(args)
        self._losses = _Losses(hook, model)

    def on_train_end(self, *_: Any, **__: Any) -> None:  # noqa: D102
        self._close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: D102
        del args, state
        if self._owner.hook is not None and self._owner.hook.should_stop:
            control.should_training_stop = True

    def on_log(  # noqa: D102
        self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any
    ) -> None:
        del args, state, control
        self._owner.record_metrics(logs or {}, are_new=True)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: D102
        del control
        counters = self._owner.counters()
        if counters is not None and state.is_world_process_zero:
            folder = _checkpoint(args, state.global_step)
            with contextlib.suppress(OSError):  # The training can do without the file.
                (folder / COUNTERS_FILE).write_text(json.dumps(counters))

    def _close(self) -> None:
        if self._losses is not None:
            self._losses.remove()
            self._losses = None
        self._owner.close()


def observe_trainer(trainer: Any, hook: Any) -> None:
    """Look for mistakes in what a trainer was told, which a hook captures.

    Args:
        trainer: A ``Trainer`` at work, without a callback of tdbg.
        hook: The hook of ``tdbg run``.
    """
    callbacks = trainer.callback_handler.callbacks
    if any(isinstance(each, TdbgCallback) for each in callbacks):
        return
    checks = _TrainerChecks(TrainerNotes(hook))
    checks.observe(trainer.args)
    # One of an earlier training would note in a run that is over.
    others = [each for each in callbacks if type(each) is not _TrainerChecks]
    callbacks[:] = [*others, checks]


def _watchers_in(args: Any) -> Iterator[MetricWatcher]:
    """Yield that the trainer keeps its best model by a metric, if it does."""
    name = getattr(args, "metric_for_best_model", None)
    rises = getattr(args, "greater_is_better", None)
    if isinstance(name, str) and isinstance(rises, bool):
        monitor = name if name.startswith("eval_") else f"eval_{name}"
        how = (
            f"Set greater_is_better={not rises} in your TrainingArguments: its default "
            'is True for each name that does not end with "loss".'
        )
        mode = "max" if rises else "min"
        yield MetricWatcher(
            type(args).__name__, "TrainingArguments", monitor, mode, how
        )


class _Losses:
    """Records the loss of each forward: that of the model, or of the backward pass."""

    def __init__(self, hook: Hook, model: nn.Module) -> None:
        self._hook = hook
        self._has_loss = False
        self._handle = model.register_forward_hook(_AfterForward(self))
        self._roots = BackwardRoots(self._begins_at)

    def forward_ends(self, output: Any) -> None:
        """Record the loss in the model's output, if it has one."""
        loss = output.get("loss") if isinstance(output, Mapping) else None
        self._has_loss = isinstance(loss, torch.Tensor) and loss.numel() == 1
        if isinstance(loss, torch.Tensor) and self._has_loss:
            self._hook.record_tensor_value("loss", loss)

    def _begins_at(self, root: torch.Tensor) -> None:
        if not self._has_loss:
            self._hook.record_tensor_value("loss", unscaled(root))

    def remove(self) -> None:
        self._handle.remove()
        self._roots.remove()


class _AfterForward(Inert):
    """The hook on the model; copies of the model do not get it."""

    def __init__(self, losses: _Losses) -> None:
        self._losses = losses

    def __call__(self, _: nn.Module, __: Any, output: Any) -> None:
        if not is_compiling():
            with contextlib.suppress(Exception):
                self._losses.forward_ends(output)


def _checkpoint(args: Any, step: int) -> Path:
    """The folder in which the trainer puts the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{step}"


def _counters(args: Any, step: int) -> dict[str, Any]:
    """The counters with which a training begins that has made *step* steps."""
    given = getattr(args, "resume_from_checkpoint", None)
    folders = [Path(given)] if isinstance(given, str) else []
    for folder in (*folders, _checkpoint(args, step)) if step else ():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            counters = json.loads(read_small_file(folder / COUNTERS_FILE))
            if counters["modes"]["TRAIN"] == step:
                return dict(counters)
    return {"version": 1, "step": step, "modes": {"TRAIN": step}}
