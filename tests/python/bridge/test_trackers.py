"""A run in the trackers, read back by their own clients and from their files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked_cli import ForkedCommands
from run_builder import RunBuilder
from tdbg.config import Role
from tracked_runs import add_steps, sick_run, wall_of
from wandb_files import records, rows

# Of MLflow and what it is made of: not tdbg's to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TRAINED = [step for step in range(16) if step % 4 != 3]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow makes folders where its client runs."""
    monkeypatch.chdir(tmp_path)


def call(folder: Path, *arguments: str, code: int = 0, **env: str) -> Any:
    """``tdbg bridge``: trackers leave threads, processes and variables behind."""
    asked = ["bridge", *arguments, "--json"]
    variables = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), **env}
    if arguments[0] == "mlflow":
        ended, printed, told = of_mlflow().call(folder, asked, variables)
    else:
        process = subprocess.run(
            [sys.executable, "-m", "tdbg", *asked],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        ended, printed, told = process.returncode, process.stdout, process.stderr
    assert ended == code, told
    return json.loads(printed) if code == 0 else told


@functools.cache
def of_mlflow() -> ForkedCommands:
    """Calls that share an import of MLflow, which takes 6 seconds of a processor.

    W&B's clients share a folder if they are forked.
    """
    return ForkedCommands("mlflow")


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left() -> Iterator[None]:
    yield
    if of_mlflow.cache_info().currsize:
        of_mlflow().close()
        of_mlflow.cache_clear()


def go_on(run: Path) -> None:
    """Train 4 more steps, as a training that was resumed."""
    with RunBuilder(run, ordinal=1, attempt=b"attempt-number-1") as builder:
        add_steps(builder, 16, 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in ``runs/sick``."""
    made = tmp_path_factory.mktemp("bridge")
    sick_run(made / "runs" / "sick")
    return made


# --- MLflow ---------------------------------------------------------------------------

STORE = "sqlite:///mlflow.db"


class Mlflow:
    """The run of MLflow in an experiment, as its client reads it."""

    def __init__(self, folder: Path, experiment: str) -> None:
        import mlflow

        self.client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
        found = self.client.get_experiment_by_name(experiment)
        (self.run,) = self.client.search_runs([found.experiment_id])

    def history(self, metric: str) -> list[Any]:
        found: list[Any] = self.client.get_metric_history(self.run.info.run_id, metric)
        return found


@pytest.fixture(autouse=True)
def no_variables() -> Iterator[None]:
    """MLflow sets some when it is imported."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture(scope="module")
def in_mlflow(folder: Path) -> Any:
    return call(
        folder,
        *("mlflow", "runs/sick", "--uri", STORE, "--project", "a"),
        *("--statistics", "l2"),
    )


def test_mlflow_has_every_number_at_its_training_step_and_time(
    folder: Path, in_mlflow: Any
) -> None:
    told = Mlflow(folder, "a")
    assert told.run.info.run_name == "sick"
    assert told.run.info.status == "FINISHED"
    assert told.run.data.tags["tdbg.path"] == str(folder / "runs" / "sick")
    history = told.history("train/loss_output_0")
    assert [each.step for each in history] == list(range(12))
    values = [each.value for each in history]
    assert values == pytest.approx([1 / (step + 1) for step in TRAINED])
    assert [each.timestamp / 1000 for each in history] == list(map(wall_of, TRAINED))
    # Evaluation stands at the training step at which it ran.
    assert [each.step for each in told.history("eval/loss_output_0")] == [3, 6, 9, 12]
    assert told.run.data.metrics["train/lr"] == 0.1
    assert len(told.history("train/gradients/gradient/fc.weight/l2")) == 12
    assert in_mlflow["numbers"]["train/lr"] == 12
    assert in_mlflow["complete"]
    assert not in_mlflow["alerts"]


@pytest.mark.usefixtures("in_mlflow")
def test_mlflow_has_the_findings_as_tags_and_as_a_file(folder: Path) -> None:
    told = Mlflow(folder, "a")
    tags = told.run.data.tags
    assert tags["tdbg.tone"] == "error"
    assert tags["tdbg.wrong"] == "1"
    assert "ExplodingTensor in gradient/fc.weight" in tags["tdbg.verdict"]
    where = "gradient/fc.weight at step 6"
    assert tags["tdbg.rule.ExplodingTensor"] == f"error: {where}"
    artifacts = Path(told.run.info.artifact_uri.removeprefix("file://"))
    file = artifacts / "tdbg" / "findings.json"
    (finding,) = json.loads(file.read_text())["findings"]
    assert finding["first_step"] == 6
    assert "12 NaN" in finding["message"]


@pytest.mark.usefixtures("in_mlflow")
def test_mlflow_is_sent_nothing_twice(folder: Path, tmp_path: Path) -> None:
    sick_run(tmp_path / "again")
    asked = ("mlflow", str(tmp_path / "again"), "--uri", STORE, "--project", "b")
    call(folder, *asked)
    go_on(tmp_path / "again")
    again = call(folder, *asked)
    assert again["sent_before"]
    assert (again["first_step"], again["last_step"], again["rows"]) == (16, 19, 4)
    steps = [each.step for each in Mlflow(folder, "b").history("train/loss_output_0")]
    assert steps == [*range(12), 16, 17, 18]


@pytest.mark.usefixtures("in_mlflow")
def test_a_run_of_mlflow_can_be_joined_and_keeps_its_metrics_and_state(
    folder: Path,
) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    own = client.create_run(client.create_experiment("c")).info.run_id
    client.log_metric(own, "train/lr", 7.0)
    asked = ("mlflow", "runs/sick", "--uri", STORE, "--join", own)
    call(folder, *asked)
    found = Mlflow(folder, "c").run
    assert found.info.status == "RUNNING"
    assert found.data.metrics["train/lr"] == 7.0
    assert found.data.metrics["tdbg/train/lr"] == 0.1
    assert call(folder, *asked)["rows"] == 0
    refused = call(folder, *asked[:-1], "nobody", code=3)
    assert "MLflow refuses" in refused
    assert "nobody" in refused


@pytest.mark.usefixtures("in_mlflow")
def test_mlflow_takes_tensors_with_any_name(folder: Path, tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "odd") as builder:
        for name in ("loss@2", "loss:2", "loss[2]", "x" * 300):
            builder.save(0, name, np.ones((), np.float32), role=Role.LOSS)
        builder.end_step(0)
    odd = str(tmp_path / "odd")
    call(folder, "mlflow", odd, "--uri", STORE, "--project", "d", "--recorded")
    metrics = Mlflow(folder, "d").run.data.metrics
    assert len([name for name in metrics if name.startswith("train/")]) == 4
    assert metrics["train/loss:2"] == 1.0


# --- W&B ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_wandb(folder: Path) -> tuple[Any, Path]:
    """The report, and the file of the run."""
    report = call(folder, "wandb", "runs/sick", "--offline", "--project", "digits")
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return report, file


def forwarded(file: Path) -> list[dict[str, Any]]:
    return [each for each in rows(file) if "tdbg/global_step" in each]


def test_wandb_has_a_row_for_each_step_with_its_training_step_and_time(
    in_wandb: tuple[Any, Path],
) -> None:
    report, file = in_wandb
    assert report["where"] == f"wandb sync {file.parent}"
    found = forwarded(file)
    assert [each["tdbg/global_step"] for each in found] == list(range(16))
    assert [each["training_step"] for each in found][:5] == [0, 1, 2, 3, 3]
    assert [each["_timestamp"] for each in found] == [wall_of(s) for s in range(16)]
    assert found[3]["eval/loss_output_0"] == pytest.approx(0.25)
    assert found[4]["train/lr"] == 0.1
    assert "train/lr" not in found[3]
    (begun,) = [each.run for each in records(file) if each.HasField("run")]
    assert begun.project == "digits"
    assert begun.display_name == "sick"


def test_wandb_draws_the_charts_of_a_mode_over_training_steps(
    in_wandb: tuple[Any, Path],
) -> None:
    metrics = [each.metric for each in records(in_wandb[1]) if each.HasField("metric")]
    axes = {each.glob_name: each.step_metric for each in metrics if each.glob_name}
    assert axes["train/*"] == axes["eval/*"] == "training_step"


def test_wandb_alerts_once_and_has_the_findings_as_a_table(
    in_wandb: tuple[Any, Path],
) -> None:
    file = in_wandb[1]
    (alert,) = [each.alert for each in records(file) if each.HasField("alert")]
    assert alert.title == "ExplodingTensor in gradient/fc.weight"
    assert alert.level == "ERROR"
    assert "since step 6" in alert.text
    (table,) = file.parent.rglob("*.table.json")
    document = json.loads(table.read_text())
    (row,) = document["data"]
    assert dict(zip(document["columns"], row, strict=True))["first_step"] == 6


def steps_in(folder: Path) -> list[int]:
    """The steps of all offline files, which W&B syncs to one run."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len({each.name for each in files}) == 1
    return [each["tdbg/global_step"] for file in files for each in forwarded(file)]


def test_wandb_is_sent_nothing_twice_even_if_its_files_were_synced_and_removed(
    tmp_path: Path,
) -> None:
    run = sick_run(tmp_path / "run")
    call(tmp_path, "wandb", str(run), "--offline")
    for folder in tmp_path.glob("wandb/offline-run-*"):
        shutil.rmtree(folder)
    go_on(run)
    again = call(tmp_path, "wandb", str(run), "--offline")
    assert (again["first_step"], again["rows"], again["alerts"]) == (16, 4, [])
    assert steps_in(tmp_path) == [16, 17, 18, 19]


def kill_wandb(folder: Path) -> None:
    """Kill W&B's own process, which would write what it got while we read."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended, or is not ours.
            program = (each / "cmdline").read_bytes().partition(b"\0")[0]
            if program.endswith(b"wandb-core") and (each / "cwd").readlink() == folder:
                os.kill(int(each.name), signal.SIGKILL)


@pytest.mark.parametrize("n_rows", [5, 3000])
def test_a_bridge_to_wandb_that_is_killed_loses_nothing_and_repeats_nothing(
    tmp_path: Path, n_rows: int
) -> None:
    """W&B's process has written few of the rows, or none, when it goes."""
    run = sick_run(tmp_path / "run", n_steps=n_rows + 11)
    program = f"""
import os, signal
import tdbg.bridge.bridge as bridge
bridge.MOST_ROWS = {n_rows}
def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
to = bridge.Destination(offline=True)
bridge.Bridge({str(run)!r}, "wandb", to, rules=[], rate=0).forward(kill)
"""
    asked = [sys.executable, "-c", program]
    assert subprocess.run(asked, cwd=tmp_path, check=False).returncode == -9
    kill_wandb(tmp_path)
    before = steps_in(tmp_path)
    asked = ["wandb", str(run), "--offline", "--recorded", "--rate", "0"]
    assert call(tmp_path, *asked)["first_step"] == len(before)
    assert steps_in(tmp_path) == list(range(n_rows + 11))
    assert call(tmp_path, *asked)["rows"] == 0


# --- Trackio --------------------------------------------------------------------------


def stored(folder: Path, project: str, query: str) -> list[Any]:
    store = sqlite3.connect(folder / "trackio" / f"{project}.db")
    try:
        return list(store.execute(query))
    finally:
        store.close()


def test_trackio_has_rows_and_alerts_once(tmp_path: Path) -> None:
    run = sick_run(tmp_path / "sick")
    asked = ("trackio", str(run), "--project", "a")
    report = call(tmp_path, *asked)
    assert report["where"] == "trackio show --project a"
    go_on(run)
    again = call(tmp_path, *asked)
    assert (again["first_step"], again["rows"], again["alerts"]) == (16, 4, [])
    found = [
        (step, json.loads(text))
        for step, text in stored(tmp_path, "a", "select step, metrics from metrics")
    ]
    told = [each for each in found if "tdbg/global_step" in each[1]]
    assert [told["tdbg/global_step"] for _, told in told] == list(range(20))
    assert [step for step, _ in told][:5] == [0, 1, 2, 3, 3]
    assert told[3][1]["eval/loss_output_0"] == pytest.approx(0.25)
    tables = [each["tdbg/findings"] for _, each in found if "tdbg/findings" in each]
    assert tables[0]["_value"][0]["rule"] == "ExplodingTensor"
    alerts = stored(tmp_path, "a", "select title, level, step from alerts")
    assert alerts == [("ExplodingTensor in gradient/fc.weight", "error", 6)]


def test_trackio_adds_to_a_run_of_somebody_else_only_if_asked_to(
    tmp_path: Path,
) -> None:
    run = sick_run(tmp_path / "sick")
    program = """
import trackio
run = trackio.init(project="b", name="sick", embed=False, auto_log_cpu=False)
run.log({"train/lr": 7.0})
run.finish()
"""
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    asked = ("trackio", str(run), "--project", "b")
    refused = call(tmp_path, *asked, code=2)
    assert "project b has a run 'sick' that tdbg did not begin" in refused
    assert call(tmp_path, *asked, "--join", "sick")["rows"] == 16
    assert call(tmp_path, *asked, "--join", "sick")["rows"] == 0
    ((last,),) = stored(
        tmp_path,
        "b",
        "select count(*) from metrics where json_extract(metrics, '$.\"train/lr\"')",
    )
    assert last == 1


def test_trackio_on_another_machine_is_refused(folder: Path) -> None:
    told = call(folder, "trackio", "runs/sick", code=2, TRACKIO_SPACE_ID="user/space")
    assert "unset TRACKIO_SPACE_ID" in told
    assert "trackio sync" in told
