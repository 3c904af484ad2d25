"""safetensors of the parameters: what a fast checkpoint costs."""

from __future__ import annotations

from safetensors.torch import load_file, save_file

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
            save_file(named, self.directory / f"{step:09}.safetensors")

    def prune(self) -> int:
        """Delete files of steps."""
        files = list(self.directory.glob("*.safetensors"))
        return contenders.remove_all_but_ends(files)

    def verify(self, snapshot: Snapshot) -> None:
        """Bit for bit."""
        named = load_file(self.directory / f"{snapshot.step:09}.safetensors")
        for name, array in snapshot.after.items():
            check_equal(named[name].numpy(), array, f"{name} at step {snapshot.step}")
