"""TensorBoard: the tables below its charts, and HPARAMS."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ui.answers._hand import Hand, names_of
from benchmarks.ui.answers._runs import LEAST_RATE, RUNS, Run
from benchmarks.ui.contenders import tensorboard_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVIRONMENT = tensorboard_page.ENVIRONMENT
PACKAGES = tensorboard_page.PACKAGES
COMMAND = tensorboard_page.COMMAND
VARIABLES = tensorboard_page.VARIABLES
path = tensorboard_page.path


def write(folder: Path, run: Run) -> None:
    """Scalars, and the settings as its plugin for hyperparameters keeps them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionStartInfo,
    )
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / run.name))
    start = SessionStartInfo(group_name=run.name, start_time_secs=time.time())
    for name, value in run.settings.items():
        start.hparams[name].number_value = value
    about = Summary.Value(
        tag=metadata.SESSION_START_INFO_TAG,
        metadata=metadata.create_summary_metadata(
            HParamsPluginData(session_start_info=start)
        ),
        tensor=metadata.NULL_TENSOR,
    )
    writer.add_event(Event(wall_time=time.time(), summary=Summary(value=[about])))
    for step, row in enumerate(run.rows()):
        values = [Summary.Value(tag=n, simple_value=v) for n, v in row.items()]
        event = Event(wall_time=time.time(), step=step)
        event.summary.CopyFrom(Summary(value=values))
        writer.add_event(event)
    writer.close()


def is_ready(page: Page) -> bool:
    """Runs are listed, and a table stands below a chart."""
    names = page.locator("runs-data-table").get_by_text(RUNS[0].name, exact=True)
    return names.count() > 0 and page.locator("scalar-card").count() > 0


def best(hand: Hand) -> Callable[[], str]:
    return _sorted(hand, "loss", clicks=1)


def sick(hand: Hand) -> Callable[[], str]:
    return _sorted(hand, "grad_norm", clicks=2)


def _sorted(hand: Hand, tag: str, clicks: int) -> Callable[[], str]:
    """Find the chart, and sort its table: first ascending, then descending."""
    hand.click(hand.page.locator("metrics-tag-filter-component input"))
    hand.type(tag)
    title = hand.page.get_by_text(tag, exact=True)
    card = hand.page.locator("scalar-card:visible").filter(has=title).first
    for _ in range(clicks):
        hand.click(card.locator("tb-data-table-header-cell", has_text="Value"))
    rows = card.locator("tb-data-table-content-row")
    return lambda: rows.first.inner_text().split()[0]


def few(hand: Hand) -> Callable[[], str]:
    page = hand.page
    hand.click(page.locator("[role=tab]", has_text="HPARAMS").first)
    hand.click(page.get_by_label("Max", exact=True).first)
    hand.type(str(LEAST_RATE))
    hand.press("Enter")
    rows = page.locator("tf-hparams-table-view").get_by_text("sweep-")
    return lambda: " ".join(sorted(names_of(rows).split()))


ANSWERS = {"best": best, "sick": sick, "filter": few}
WITHOUT: dict[str, str] = {}
