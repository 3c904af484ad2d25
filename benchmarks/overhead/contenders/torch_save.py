"""``torch.save`` of the parameters: what a checkpoint costs."""

from __future__ import annotations

import torch

from benchmarks._harness import check_equal
from benchmarks.overhead import contenders
from benchmarks.overhead.training import Snapshot


class Watcher(contenders.Watcher):
    """A file a step, written in the training thread."""

    captures = frozenset({"parameters"})

    def after_step(self, step: int, loss: float) -> None:  # noqa: ARG002
        """Save the parameters."""
        if self.capture.at(step):
            named = {k: v.detach() for k, v in self.training.model.named_parameters()}
            torch.save(named, self.directory / f"{step:09}.pt")

    def prune(self) -> int:
        """Delete files of steps."""
        return contenders.remove_all_but_ends(list(self.directory.glob("*.pt")))

    def verify(self, snapshot: Snapshot) -> None:
        """Bit for bit."""
        named = torch.load(self.directory / f"{snapshot.step:09}.pt")
        for name, array in snapshot.after.items():
            check_equal(named[name].numpy(), array, f"{name} at step {snapshot.step}")
