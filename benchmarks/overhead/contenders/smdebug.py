"""smdebug's hook, as its documentation has it."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("SMDEBUG_LOG_LEVEL", "error")

from smdebug.pytorch import Hook, ReductionConfig, SaveConfig
from smdebug.trials import create_trial

from benchmarks._harness import check, check_close, check_equal
from benchmarks.overhead import contenders
from benchmarks.overhead.training import Snapshot

NEVER = 10**9
REDUCTIONS = ["min", "max", "mean", "std"]
NORMS = ["l1", "l2"]


class Watcher(contenders.Watcher):
    """One run; statistics are twelve reductions."""

    captures = frozenset(
        {"all", "weights", "gradients", "statistics", "losses", "nothing"}
    )

    def attach(self) -> None:
        """Register model and loss."""
        what, every = self.capture.what, self.capture.interval
        schedule = SaveConfig(save_interval=every)
        if what == "nothing":
            schedule = SaveConfig(save_interval=NEVER, start_step=NEVER)
        reductions = ReductionConfig(
            reductions=REDUCTIONS,
            abs_reductions=REDUCTIONS,
            norms=NORMS,
            abs_norms=NORMS,
        )
        included = {"weights": ["weights", "biases"], "gradients": ["gradients"]}
        self.hook = Hook(
            out_dir=str(self.directory / "run"),
            save_all=what in {"all", "statistics"},
            include_collections=included.get(what),
            save_config=schedule,
            reduction_config=reductions if what == "statistics" else None,
        )
        self.hook.register_module(self.training.model)
        self.hook.register_loss(self.training.criterion)

    def drain(self) -> None:
        """Close the step's file, as the next forward would first do."""
        if self.hook.writer is not None:
            self.hook._close_writers()

    def close(self) -> None:
        """End the run."""
        self.hook.close()

    def prune(self) -> int:
        """Delete the files of steps."""
        files = list((self.directory / "run" / "events").rglob("*.tfevents"))
        return contenders.remove_all_but_ends(files)

    def verify(self, snapshot: Snapshot) -> None:
        """Raw values bit for bit, reductions roughly: float32 sums are inexact."""
        what, step = self.capture.what, snapshot.step
        if what == "nothing":
            check(not list(self.directory.rglob("*.tfevents")), "something was saved")
            return
        trial = create_trial(str(self.directory / "run"))
        root = type(self.training.model).__name__
        expected: dict[str, Any] = {}
        if what in {"all", "weights", "statistics"}:
            expected |= {f"{root}_{k}": v for k, v in snapshot.before.items()}
        if what in {"all", "gradients", "statistics"}:
            named = {f"{root}_{k}": v for k, v in snapshot.gradients.items()}
            expected |= {f"gradient/{k}": v for k, v in named.items()}
        if what in {"all", "statistics"}:
            expected |= {f"{k}_output_0": v for k, v in snapshot.outputs.items()}
        if what != "statistics":
            loss = trial.tensor("CrossEntropyLoss_output_0").value(step)
            check_equal(float(loss), snapshot.loss, f"loss of step {step}")
        for name, array in expected.items():
            tensor, where = trial.tensor(name), f"{name} at step {step}"
            if what != "statistics":
                check_equal(tensor.value(step), array, where)
                continue
            for key in ("min", "max"):
                got = tensor.reduction_value(step, key)
                check_close(got, getattr(array, key)(), 1e-6, f"{key} of {where}")
