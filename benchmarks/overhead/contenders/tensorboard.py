"""Histograms of parameters and gradients in TensorBoard's files."""

from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from benchmarks._harness import check_close, check_equal
from benchmarks.overhead import contenders
from benchmarks.overhead.training import Snapshot


class Watcher(contenders.Watcher):
    """``add_histogram`` after the optimizer's step, as tutorials have it."""

    captures = frozenset({"histograms"})

    def attach(self) -> None:
        """Open the file."""
        self.writer = SummaryWriter(self.directory)
        self.named = list(self.training.model.named_parameters())

    def after_step(self, step: int, loss: float) -> None:
        """Add everything."""
        if not self.capture.at(step):
            return
        self.writer.add_scalar("loss", loss, step)
        for name, parameter in self.named:
            self.writer.add_histogram(name, parameter, step)
            self.writer.add_histogram(f"gradient/{name}", parameter.grad, step)

    def drain(self) -> None:
        """Write what its thread has."""
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()

    def verify(self, snapshot: Snapshot) -> None:
        """Count and extremes of the histograms."""
        events = EventAccumulator(str(self.directory), {"histograms": 0})
        events.Reload()
        expected = {f"gradient/{k}": v for k, v in snapshot.gradients.items()}
        for name, array in {**snapshot.after, **expected}.items():
            at = {one.step: one.histogram_value for one in events.Histograms(name)}
            found, where = at[snapshot.step], f"{name} at step {snapshot.step}"
            check_equal(int(found.num), array.size, f"count of {where}")
            check_close(found.min, array.min(), 1e-6, f"minimum of {where}")
            check_close(found.max, array.max(), 1e-6, f"maximum of {where}")
