"""``tdbg ui``: the table of runs and the herd."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks._harness import check
from benchmarks.ui.answers._hand import Hand, names_of
from benchmarks.ui.answers._runs import LAYERS, LEAST_RATE, RUNS, Run
from benchmarks.ui.contenders import tdbg_ui

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVIRONMENT = tdbg_ui.ENVIRONMENT
PACKAGES = tdbg_ui.PACKAGES
COMMAND = tdbg_ui.COMMAND
VARIABLES = tdbg_ui.VARIABLES
path = tdbg_ui.path


def write(folder: Path, run: Run) -> None:
    """Gradients by their norm, the rest as scalars, as the hook names them."""
    from tdbg import _core
    from tdbg.config import Role
    from tdbg.modes import ModeKeys
    from tdbg.run.directory import create_run

    made = create_run(folder / run.name)
    capture = _core.Capture(
        str(made.path), run_uuid=made.uuid, attempt_uuid=bytes(16), min_free_bytes=0
    )
    layers = [f"gradient/{name.removeprefix('grad/')}.weight" for name in LAYERS]
    tensors = np.zeros((1 + len(layers), 2), np.float32)
    ids = [capture.define("loss_output_0", int(Role.LOSS), "float32", ())]
    ids += [capture.define(n, int(Role.GRADIENT), "float32", (2,)) for n in layers]
    pointers = [row.ctypes.data for row in tensors]
    settings = {f"scalar/optimizer/group_0/{k}": v for k, v in run.settings.items()}
    for step, row in enumerate(run.rows()):
        tensors[:, 0] = [row["loss"], *(row[name] for name in LAYERS)]
        capture.statistics(step, ids, pointers)
        for name, value in {"scalar/grad_norm": row["grad_norm"], **settings}.items():
            capture.scalar(step, capture.define(name, int(Role.SCALAR)), value, 1)
        capture.end_step(step, ModeKeys.TRAIN.value, step)
    check(capture.close(60.0), "the run was not written")


def is_ready(page: Page) -> bool:
    """Every row is read."""
    head = page.locator(".runs-head h1").all_inner_texts()
    return (
        bool(head)
        and head[0].startswith(f"{len(RUNS)} runs")
        and not any("reading" in text for text in head)
    )


def best(hand: Hand) -> Callable[[], str]:
    hand.click(hand.page.get_by_role("button", name="loss", exact=True))
    return lambda: _names(hand.page).split()[0]


def sick(hand: Hand) -> Callable[[], str]:
    hand.click(hand.page.get_by_role("button", name="Herd", exact=True))

    def read() -> str:
        text = hand.page.locator("body").inner_text()
        found = re.search(r"(\S+): \d+ of \d+ tensors left", text)
        return found[1] if found else ""

    return read


def few(hand: Hand) -> Callable[[], str]:
    hand.click(hand.page.get_by_label("Filter runs"))
    hand.type(f"lr<{LEAST_RATE}")
    return lambda: " ".join(sorted(_names(hand.page).split()))


def _names(page: Page) -> str:
    return names_of(page.locator(".run-link"))


ANSWERS = {"best": best, "sick": sick, "filter": few}
WITHOUT: dict[str, str] = {}
