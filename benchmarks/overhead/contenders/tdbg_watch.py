"""tdbg's ``watch`` as it is by default."""

from __future__ import annotations

from benchmarks.overhead.contenders import tdbg
from tdbg.pytorch import watch


class Watcher(tdbg.Watcher):
    """Statistics, without those of inputs, and what the default rules need."""

    captures = frozenset({"defaults"})

    def attach(self) -> None:
        """Watch."""
        if self.capture.interval != 10:
            msg = "the default is every tenth step"
            raise ValueError(msg)
        self.hook = watch(
            self.training.model,
            self.training.criterion,
            out=self.directory / "run",
            min_free_bytes=0,
        )
