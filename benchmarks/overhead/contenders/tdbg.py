"""tdbg's hook."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from benchmarks._harness import check_close, check_equal
from benchmarks.overhead import contenders
from benchmarks.overhead.contenders import remove_all_but_ends
from benchmarks.overhead.training import Snapshot
from tdbg.pytorch import Hook, ReductionConfig, SaveConfig, create_trial

LOSS = "CrossEntropyLoss_output_0"


class Watcher(contenders.Watcher):
    """One run; raw values compressed as they are by default."""

    captures = frozenset(
        {"all", "model", "weights", "gradients", "statistics", "losses", "nothing"}
    )
    settings: ClassVar[dict[str, Any]] = {}

    def attach(self) -> None:
        """Register model and loss."""
        what, every = self.capture.what, self.capture.interval
        raw = what in {"all", "model", "weights", "gradients"}
        schedule = SaveConfig(save_interval=every, statistics_interval=every)
        if what == "nothing":
            schedule = SaveConfig(end_step=0)
        weights = ["weights", "biases"]
        included = {
            "weights": weights,
            "gradients": ["gradients"],
            "model": [*weights, "inputs", "outputs"],
        }
        self.hook = Hook(
            self.directory / "run",
            save_all=what in {"all", "statistics"},
            include_collections=included.get(what),
            save_config=schedule,
            reduction_config=None if raw else ReductionConfig(),
            min_free_bytes=0,
            **self.settings,
        )
        self.hook.register_module(self.training.model)
        self.hook.register_loss(self.training.criterion)

    def drain(self) -> None:
        """Write the queue."""
        self.hook.flush()

    def close(self) -> None:
        """Seal the run."""
        if not self.hook.close(timeout=60.0):
            msg = "not everything was written"
            raise RuntimeError(msg)

    def prune(self) -> int:
        """Delete sealed shards."""
        return remove_all_but_ends(list(self.directory.rglob("*.tds")))

    def verify(self, snapshot: Snapshot) -> None:
        """Raw values bit for bit, statistics against NumPy in float64."""
        trial = create_trial(self.directory / "run")
        what, step = self.capture.what, snapshot.step
        counters = trial.counters()
        lost = {k: v for k, v in counters.items() if v and "drop" in k}
        check_equal(lost, {}, "dropped")
        if what == "nothing":
            check_equal(trial.tensor_names(), [], "names")
            return
        expected: dict[str, Any] = {}
        if what in {"all", "model", "weights", "statistics", "defaults"}:
            expected |= snapshot.before
        if what in {"all", "gradients", "statistics", "defaults"}:
            expected |= {f"gradient/{k}": v for k, v in snapshot.gradients.items()}
        if what in {"all", "model", "statistics", "defaults"}:
            expected |= {f"{k}_output_0": v for k, v in snapshot.outputs.items()}
        loss = trial.tensor(LOSS).value(step)
        check_equal(float(loss), snapshot.loss, f"loss of step {step}")
        for name, array in expected.items():
            tensor, where = trial.tensor(name), f"{name} at step {step}"
            if what in {"all", "model", "weights", "gradients"}:
                check_equal(np.asarray(tensor.value(step)), array, where)
            exact = array.astype(np.float64)
            for key, value in {
                "min": exact.min(),
                "max": exact.max(),
                "l1": np.abs(exact).sum(),
                "l2": np.sqrt((exact * exact).sum()),
                "std": exact.std(),
            }.items():
                # Of one element the deviation is 0, of few it cancels.
                if value:
                    got = tensor.reduction_value(step, key)
                    check_close(got, value, 1e-6, f"{key} of {where}")
