"""MLflow: its table of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ui.answers._hand import Hand, names_of
from benchmarks.ui.answers._runs import Run

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVIRONMENT = "mlflow"
PACKAGES = ("mlflow",)
STORE = "sqlite:///{folder}/mlflow.db"
# One process answers, and none waits for jobs of agents: a small machine has no room.
COMMAND = (
    *("{bin}/mlflow", "ui", "--backend-store-uri", STORE),
    *("--port", "{port}", "--workers", "1"),
)
VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
# What one request to it may hold.
MOST = 1000


def write(folder: Path, run: Run) -> None:
    """Metrics in batches, settings as parameters."""
    import mlflow
    from mlflow.entities import Metric

    mlflow.set_tracking_uri(STORE.format(folder=folder))
    mlflow.set_experiment("sweep")
    metrics = [
        Metric(name, value, step, step)
        for step, row in enumerate(run.rows())
        for name, value in row.items()
    ]
    with mlflow.start_run(run_name=run.name) as made:
        mlflow.log_params(dict(run.settings))
        for i in range(0, len(metrics), MOST):
            mlflow.MlflowClient().log_batch(made.info.run_id, metrics[i : i + MOST])


def path(_folder: Path, _printed: str) -> str:
    """The runs of the only experiment that is not its default."""
    return "/#/experiments/1/runs"


def is_ready(page: Page) -> bool:
    """Rows stand there."""
    return _names(page) != ""


def best(hand: Hand) -> Callable[[], str]:
    _sort(hand, "loss")
    hand.click(hand.page.get_by_role("button", name="Sort: loss"))
    hand.click(hand.page.get_by_label("Sort ascending"))
    return lambda: _names(hand.page).split()[0]


def sick(hand: Hand) -> Callable[[], str]:
    _sort(hand, "grad_norm")
    return lambda: _names(hand.page).split()[0]


def _sort(hand: Hand, metric: str) -> None:
    """Descending, by its last value."""
    hand.click(hand.page.get_by_role("button", name="Sort: Created"))
    hand.click(hand.page.get_by_role("menuitemcheckbox", name=metric, exact=True))


def _names(page: Page) -> str:
    return names_of(page.locator('.ag-row a[href*="/runs/"]'))


ANSWERS = {"best": best, "sick": sick}
WITHOUT = {"filter": "sorts by it, and refuses to filter: to it, settings are text"}
