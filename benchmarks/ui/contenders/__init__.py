"""Dashboards, one file each: how its users write, start and open it.

What is asked of a file stands in ``Contender``.  ``write`` runs in the environment of
the contender, everything else in that of the benchmark, so modules import a contender's
own packages only where it writes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from benchmarks.ui._series import Series
from benchmarks.ui._shown import Shown

__all__ = ["CONTENDERS", "Contender", "Served", "load"]

#: By name: the module.
CONTENDERS = {
    "tdbg": "tdbg_ui",
    "TensorBoard": "tensorboard_page",
    "Aim": "aim_page",
    "Trackio": "trackio_page",
}


class Served(Protocol):
    """What starts a server.

    Attributes:
        ENVIRONMENT: Of ``benchmarks/environments``; empty: the benchmark's own.
        PACKAGES: Those whose versions matter.
        COMMAND: What a user types to start the server; ``{python}``, ``{bin}`` (the
            folder of programs), ``{folder}`` and ``{port}`` are put in.
        VARIABLES: Environment variables that it needs, likewise.
    """

    ENVIRONMENT: str
    PACKAGES: tuple[str, ...]
    COMMAND: tuple[str, ...]
    VARIABLES: Mapping[str, str]


class Contender(Served, Protocol):
    """What a module of this folder has.

    Attributes:
        DRAWN: JavaScript, true once a chart shows numbers; ``hasInk(element)`` says
            whether a canvas has a pixel that is not transparent.
        RELOAD_SECONDS: After so long without a chart a user loads the page again, since
            it does not ask a second time by itself; 0: it does.
        ANSWER: A part of the addresses of answers that hold numbers of charts.
    """

    DRAWN: str
    RELOAD_SECONDS: float
    ANSWER: str

    def write(
        self, folder: Path, series: Series
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a run in *folder*; what is entered writes a step."""

    def path(self, folder: Path, printed: str) -> str:
        """What stands behind the port in the address that a user opens."""

    def shown(self, series: Series, answers: list[bytes]) -> Shown:
        """What the answers that a page got show of the series, values checked."""

    def newest(self, answer: bytes) -> int | None:
        """The newest step that an answer holds; None: it holds none."""


def load(name: str) -> Contender:
    """The contender of that name."""
    module = importlib.import_module(f"{__name__}.{CONTENDERS[name]}")
    return cast("Contender", module)
