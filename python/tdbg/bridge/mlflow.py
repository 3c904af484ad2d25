"""MLflow: a tracking server, a database or a folder.

The position is in MLflow itself: a metric of the run is the last global step that was
logged.  MLflow keeps a number that is logged twice once.

Thread safety: none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tdbg.bridge.rows import StepRow
from tdbg.bridge.tracker import (
    POSITION,
    Destination,
    Forwarded,
    Sent,
    fitting,
    refusals,
)
from tdbg.bridge.verdicts import Alert, RunOutcome
from tdbg.config.libraries import library
from tdbg.errors import ConfigurationError

__all__ = ["MlflowTracker"]

# Of names of metrics and tags: docs of log-batch.
REFUSED = r"[^\w./ :-]"
LONGEST_NAME, LONGEST_TAG, LONGEST_PARAM = 250, 5000, 6000
MOST_METRICS, MOST_PARAMS = 1000, 100
RUN_TAG, FINDINGS_FILE = "tdbg.run", "tdbg/findings.json"
# How a training ended, in words of MLflow.
ENDS = {"closed": "FINISHED", "dead": "KILLED"}


class MlflowTracker:
    """A run of MLflow: see ``TrackedRun``.

    Args:
        destination: Where it goes.

    Raises:
        ConfigurationError: If mlflow is not installed, or the destination has what
            MLflow lacks.
    """

    def __init__(self, destination: Destination) -> None:
        if destination.offline:
            msg = "MLflow has no offline mode: its uri may be sqlite:///mlflow.db"
            raise ConfigurationError(msg)
        self._mlflow = library("mlflow", "'tdbg[mlflow]'", "MLflow")
        self._to = destination
        self._id = ""

    replaces = True

    @property
    def where(self) -> str:
        """The store, the experiment and the run."""
        return f"{self._client.tracking_uri}, experiment {self._experiment}, {self._id}"

    def open(self, run: Forwarded) -> Sent:
        """Find the run that has the tag of this run, or begin it."""
        to = self._to
        with refusals("MLflow"):
            self._client = self._mlflow.MlflowClient(tracking_uri=to.uri)
            if to.join is not None:
                found = self._client.get_run(to.join)
            else:
                found = self._found(run) or self._begun(run)
            self._id = found.info.run_id
            self._experiment = found.info.experiment_id
            tags = {f"tdbg.{k}": v for k, v in run.identity.items()}
            self._set_tags(tags)
        last = found.data.metrics.get(POSITION)
        return Sent(0 if last is None else int(last) + 1)

    def _found(self, run: Forwarded) -> Any:
        experiment = self._experiment_of()
        asked = f"tags.`{RUN_TAG}` = '{run.uuid}'"
        runs = self._client.search_runs([experiment], asked, max_results=1)
        return runs[0] if runs else None

    def _begun(self, run: Forwarded) -> Any:
        entities = self._mlflow.entities
        made = self._client.create_run(
            self._experiment_of(),
            tags={RUN_TAG: run.uuid},
            run_name=self._to.name or run.name,
        )
        params = [
            entities.Param(
                fitting(name, REFUSED, LONGEST_NAME), str(value)[:LONGEST_PARAM]
            )
            for name, value in run.hyperparameters.items()
        ]
        for at in range(0, len(params), MOST_PARAMS):
            some = params[at : at + MOST_PARAMS]
            self._client.log_batch(made.info.run_id, params=some)
        return made

    def _experiment_of(self) -> str:
        name = self._to.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tdbg"
        found = self._client.get_experiment_by_name(name)
        made: str = (
            self._client.create_experiment(name)
            if found is None
            else found.experiment_id
        )
        return made

    def send(self, rows: Sequence[StepRow]) -> None:
        """Log the metrics of the rows in requests of 1,000, and wait for each.

        The position comes behind the numbers of its row.
        """
        metric, found = self._mlflow.entities.Metric, []
        for row in rows:
            when = int(row.wall * 1000)
            named = {self._name(key): value for key, value in row.values.items()}
            for key, value in {**named, POSITION: row.global_step}.items():
                found.append(metric(key, float(value), when, row.step))
        with refusals("MLflow"):
            for at in range(0, len(found), MOST_METRICS):
                some = found[at : at + MOST_METRICS]
                self._client.log_batch(self._id, metrics=some, synchronous=True)

    def _name(self, name: str) -> str:
        return fitting(f"{self._to.prefix}{name}", REFUSED, LONGEST_NAME)

    def alert(self, alert: Alert) -> None:
        """Do nothing: MLflow alerts nobody; ``judge`` sets tags to search for."""

    def judge(self, outcome: RunOutcome) -> None:
        """Set tags for the verdict and each problem; write all findings as a file."""
        verdict = outcome.verdict
        tags = {
            "tdbg.verdict": verdict.sentence,
            "tdbg.tone": verdict.tone,
            "tdbg.wrong": str(verdict.wrong),
        }
        for problem in outcome.diagnosis.problems:
            state = "over" if problem.is_over else problem.severity.label
            text = f"{state}: {problem.place} at step {problem.worst.first_step}"
            tags.setdefault(f"tdbg.rule.{problem.rule}", text)
        with refusals("MLflow"):
            self._set_tags(tags)
            self._client.log_dict(self._id, outcome.to_json(), FINDINGS_FILE)

    def close(self, state: str) -> None:
        """Set how the training ended; a run that somebody else began is left alone."""
        if self._id and self._to.join is None and state in ENDS:
            with refusals("MLflow"):
                self._client.set_terminated(self._id, ENDS[state])

    def _set_tags(self, tags: dict[str, str]) -> None:
        make = self._mlflow.entities.RunTag
        found = [
            make(fitting(name, REFUSED, LONGEST_NAME), value[:LONGEST_TAG])
            for name, value in tags.items()
        ]
        self._client.log_batch(self._id, tags=found)
