"""Each rank of a collective of XGBoost writes what is of its part of the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tdbg.modes import ModeKeys
from tree_runs import Run

# Two ranks and their tracker, as `xgboost.collective` documents them.
PROGRAM = """
import pickle
import sys
from multiprocessing import get_context

import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

import tdbg.xgboost as tx
from tree_runs import EVERY_ROUND, cancer


def settings(workers):
    return dict(
        include_collections=["labels", "trees"],
        include_workers=workers,
        save_config=EVERY_ROUND,
    )


def train(arguments, rank, run_dir, pickled):
    with collective.CommunicatorContext(**arguments):
        data = cancer()
        half = slice(rank, None, 2)
        matrix = xgboost.DMatrix(data.x[half], data.y[half])
        hook = pickle.loads(pickled) if pickled else tx.Hook(
            run_dir, **settings("all")
        )
        xgboost.train(
            {"objective": "binary:logistic", "nthread": 1}, matrix, 3,
            evals=[(matrix, "train")], verbose_eval=False, callbacks=[hook],
        )
        hook.close()


if __name__ == "__main__":
    run_dir, is_pickled = sys.argv[1], sys.argv[2] == "pickled"
    pickled = None
    if is_pickled:
        hook = tx.Hook(run_dir, **settings("one"))
        pickled = pickle.dumps(hook)
        hook.close()
    tracker = RabitTracker(host_ip="127.0.0.1", n_workers=2)
    tracker.start()
    context = get_context("spawn")
    workers = [
        context.Process(
            target=train, args=(tracker.worker_args(), i, run_dir, pickled)
        )
        for i in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    tracker.wait_for(60)
    sys.exit(max(worker.exitcode or 0 for worker in workers))
"""

# A cluster of two processes, each with its part of the data.
DASK = """
import sys

import dask.array
from dask.distributed import Client, LocalCluster
from xgboost import dask as xgboost_on_dask

import tdbg.xgboost as tx
from tree_runs import EVERY_ROUND, cancer

if __name__ == "__main__":
    run_dir, how = sys.argv[1:]
    data = cancer()
    x = dask.array.from_array(data.x[:400], chunks=(200, data.x.shape[1]))
    y = dask.array.from_array(data.y[:400], chunks=200)
    hook = tx.Hook(
        run_dir,
        include_collections=["labels", "trees"],
        include_workers="all",
        save_config=EVERY_ROUND,
    )
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        if how == "dask":
            matrix = xgboost_on_dask.DaskDMatrix(client, x, y)
            parameters = {"objective": "binary:logistic", "nthread": 1}
            for rounds in (5, 3):  # The later training takes the place of the other.
                xgboost_on_dask.train(
                    client, parameters, matrix, rounds,
                    evals=[(matrix, "train")], verbose_eval=False, callbacks=[hook],
                )
        else:
            model = xgboost_on_dask.DaskXGBClassifier(
                n_estimators=3, n_jobs=1, callbacks=[hook]
            )
            model.client = client
            model.fit(x, y, eval_set=[(x, y)], verbose=False)
    hook.close()
"""


def run_program(text: str, program: Path, repository: Path, *arguments: str) -> None:
    program.write_text(text)
    helpers = repository / "tests" / "python" / "helpers"
    code = (
        f"import sys; sys.path.insert(0, {str(helpers)!r}); "
        f"sys.argv = ['ranks', *{arguments!r}]; "
        f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def train_on_two_ranks(program: Path, repository: Path, run_dir: Path, how: str) -> Run:
    run_program(PROGRAM, program, repository, str(run_dir), how)
    run = Run(run_dir)
    assert run.steps("train-logloss") == [0, 1, 2]
    return run


def n_labels(run: Run) -> list[int]:
    labels = run.trial.tensor("labels")
    return [
        len(labels.value(2, mode=ModeKeys.TRAIN, worker=worker))
        for worker in run.trial.workers()
    ]


def test_each_rank_writes_the_labels_of_its_own_data(
    run_dir: Path, tmp_path: Path, repository: Path
) -> None:
    run = train_on_two_ranks(tmp_path / "ranks.py", repository, run_dir, "made")
    assert n_labels(run) == [200, 200]


def test_a_hook_that_is_pickled_into_a_collective_captures_there(
    run_dir: Path, tmp_path: Path, repository: Path
) -> None:
    run = train_on_two_ranks(tmp_path / "ranks.py", repository, run_dir, "pickled")
    assert n_labels(run) == [200]


def test_ranks_of_dask_write_one_run_together(
    run_dir: Path, tmp_path: Path, repository: Path
) -> None:
    run_program(DASK, tmp_path / "ranks.py", repository, str(run_dir), "dask")
    run = Run(run_dir)
    assert run.steps("train-logloss") == [0, 1, 2]
    assert n_labels(run) == [200, 200]
    # The hook of the client has begun what the ranks take part in.
    (attempt,) = run.trial.attempts()
    assert attempt.world_size == 2


def test_an_estimator_of_dask_takes_a_hook(
    run_dir: Path, tmp_path: Path, repository: Path
) -> None:
    run_program(DASK, tmp_path / "ranks.py", repository, str(run_dir), "sklearn")
    run = Run(run_dir)
    assert run.steps("validation_0-logloss") == [0, 1, 2]
    assert n_labels(run) == [200, 200]
