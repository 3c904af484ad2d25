"""Draws the plots of docs/notebook.md from a run of the training beside it.

    python -m examples.notebook.pictures runs/digits docs/images

The run is made if it is not there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tdbg
from examples.notebook.training import train

__all__ = ["draw"]


def draw(run: Path, folder: Path) -> list[Path]:
    """Write the pictures, and return their paths."""
    if not run.exists():
        train(run)
    trial = tdbg.create_trial(run)
    loss = trial.plot.series("CrossEntropyLoss_output_0", label="loss", columns=100)
    gradients = trial.plot.series("gradient/0.weight", "l2", columns=100)
    trial.plot.series("gradient/10.weight", "l2", ax=gradients, columns=100).legend()
    plots = {
        "plot_series.png": loss,
        "plot_gradients.png": gradients,
        "plot_layer_map.png": trial.plot.layer_map("gradients", "l2"),
        "plot_ridgeline.png": trial.plot.ridgeline("0.weight", most=9),
    }
    for name, axes in plots.items():
        axes.figure.savefig(folder / name, dpi=110)
    return [folder / name for name in plots]


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
