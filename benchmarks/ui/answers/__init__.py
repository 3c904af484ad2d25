"""How questions about a sweep are answered in each dashboard, one file each.

What is asked of a file stands in ``Dashboard``.  ``write`` runs in the environment of
the dashboard, everything else in that of the benchmark.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from benchmarks.ui.answers._hand import Hand
from benchmarks.ui.answers._runs import LEAST_RATE, Run
from benchmarks.ui.contenders import Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["DASHBOARDS", "QUESTIONS", "Dashboard", "load"]

#: By name: the module.
DASHBOARDS = {
    "tdbg": "tdbg_page",
    "TensorBoard": "tensorboard_page",
    "Aim": "aim_page",
    "Trackio": "trackio_page",
    "MLflow": "mlflow_page",
}

QUESTIONS = {
    "best": "which of 30 runs ends with the lowest loss",
    "sick": "which run's gradients explode",
    "filter": f"which runs have a learning rate below {LEAST_RATE}",
}


class Dashboard(Served, Protocol):
    """What a module of this folder has.

    Attributes:
        ANSWERS: By question: what a user does, who knows the way; returns what is read
            on the screen, and is called again until that is the answer.
        WITHOUT: By question: why the script has no answer.
    """

    ANSWERS: Mapping[str, Callable[[Hand], Callable[[], str]]]
    WITHOUT: Mapping[str, str]

    def write(self, folder: Path, run: Run) -> None:
        """Write a run as users do."""

    def path(self, folder: Path, printed: str) -> str:
        """What stands behind the port in the address of the list of runs."""

    def is_ready(self, page: Page) -> bool:
        """Whether the list, or what stands for it, is on the screen."""


def load(name: str) -> Dashboard:
    """The dashboard of that name."""
    module = importlib.import_module(f"{__name__}.{DASHBOARDS[name]}")
    return cast("Dashboard", module)
