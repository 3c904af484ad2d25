"""SQL over runs in a store: the answers of the same runs in directories."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from store_runs import copy_run
from tdbg.errors import NotARun
from tdbg.query import sql
from tdbg.remote import open_store
from tdbg.trial import create_trial

QUERIES = [
    "select run, tensor, max(l2) from statistics group by all order by all",
    "select run, step, l2 from statistics where tensor = 'fc.weight' order by all",
    "select run, tensor, l2 from statistics where step = 3 order by all",
    "select run, state, steps from runs order by all",
    "select run, name, value from scalars order by all",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        with RunBuilder(tmp_path / "sweep" / f"run{i}") as run:
            for step in range(6):
                value = np.full(4, i + step, np.float32)
                run.save(step, "fc.weight", value, what="statistics")
                run.scalar(step, "scalar/accuracy", i / (1 + step))
                run.end_step(step)
    return tmp_path / "sweep"


@pytest.fixture
def url(folder: Path) -> str:
    """Of a folder of the same runs, and one more level of them."""
    bucket = f"memory://bucket-{uuid.uuid4().hex}"
    for run in folder.iterdir():
        copy_run(run, open_store(f"{bucket}/sweep/{run.name}"))
    return f"{bucket}/sweep"


@pytest.mark.parametrize("query", QUERIES)
def test_runs_below_a_url_answer_as_those_of_a_folder(
    folder: Path, url: str, query: str
) -> None:
    expected = list(sql(query, folder))
    assert expected
    assert list(sql(query, url)) == expected


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{url}/*", ["run0", "run1", "run2"]),
        ("{url}/run[12]", ["run1", "run2"]),
        ("{above}/*", ["run0", "run1", "run2"]),
        ("{above}/s*/run0", ["run0"]),
        ("{url}/run1", ["run1"]),
    ],
)
def test_a_pattern_of_urls_chooses_runs(
    url: str, pattern: str, names: list[str]
) -> None:
    found = pattern.format(url=url, above=url.rpartition("/")[0])
    assert [run for (run,) in sql("select run from runs order by run", found)] == names


def test_beside_runs_of_this_machine_a_run_is_called_by_its_url(
    folder: Path, url: str
) -> None:
    answer = sql("select run from runs", [str(folder / "run0"), f"{url}/run0"])
    assert [run for (run,) in answer] == ["run0", f"{url}/run0"]


def test_a_trial_of_a_url_is_asked(url: str) -> None:
    trial = create_trial(f"{url}/run2")
    (row,) = sql("select run, max(l2) from statistics group by run", trial)
    assert row == ("run2", pytest.approx(2 * 7))


@pytest.mark.parametrize("end", ["/*2/x*", "/nothing", "/x*"])
def test_a_url_without_runs_is_refused(url: str, end: str) -> None:
    with pytest.raises(NotARun, match="there is no run at memory://"):
        sql("select 1", f"{url}{end}")
