"""SQL and diff over what smdebug wrote: here, in a store, and beside runs of tdbg.

Seen to fail when runs below a URL leave out what smdebug wrote, and when a listing
converts.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tdbg
from run_builder import RunBuilder, simple_run
from run_rows import listed, told
from smdebug_corpus import CASES, CORPUS, END, files_of, put
from store_runs import copy_run
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError
from tdbg.remote import find_runs, open_store
from tdbg.ui import control
from tdbg.ui.runs import Runs

pytestmark = pytest.mark.usefixtures("own_cache")

NOT_READ = "smdebug, not read yet"
# Names of the run itself aside, a directory and its copy in a store say the same.
QUERIES = [
    "select tensor, step, mode, mode_step, l2, max from statistics order by all",
    "select name, step, value from scalars order by all",
    "select step, mode, mode_step from steps order by all",
    "select state, steps, best_loss, lost_records from runs",
    "select * exclude (run) from findings order by all",
]


@pytest.fixture
def url() -> str:
    """Of a folder in an empty store."""
    return f"memory://bucket-{uuid.uuid4().hex}/jobs"


def out(case: str) -> Path:
    return CORPUS / case / "out"


def native(path: Path, case: str, *, wrong: str = "") -> Path:
    """A run of tdbg with the values of a case, but for one tensor."""
    trial = tdbg.create_trial(out(case))
    steps = {
        step: [
            name
            for name in trial.tensor_names(step=step, mode="GLOBAL")
            if step in trial.tensor(name).steps("GLOBAL", "values")
        ]
        for step in trial.steps("GLOBAL")
    }
    with RunBuilder(path) as run:
        for step, names in steps.items():
            for name in names:
                value = trial.tensor(name).value(step, "GLOBAL")
                run.save(step, name, value * 2 if name == wrong else value)
            run.end_step(step, trial.mode(step), trial.mode_step(step))
    return path


def damaged(case: str, name: str, step: int, path: Path) -> Path:
    """A copy in which a tensor is another one at a step: nothing there can tell."""
    shutil.copytree(out(case), path)
    index = json.loads(
        (path / f"index/000000000/{step:012d}_worker_0.json").read_text()
    )
    (place,) = [e for e in index["tensor_payload"] if e["tensorname"] == name]
    file = path / f"events/{step:012d}/{step:012d}_worker_0.tfevents"
    content = bytearray(file.read_bytes())
    value = tdbg.create_trial(out(case)).tensor(name).value(step, "GLOBAL")
    at = content.index(value.tobytes(), place["start_idx"])
    content[at : at + value.nbytes] = (value + np.float32(0.5)).tobytes()
    file.write_bytes(content)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_copy_in_a_store_answers_sql_as_the_directory_does(
    case: str, url: str
) -> None:
    put(case, f"{url}/{case}")
    assert list(tdbg.sql("select 1 from statistics", out(case)))
    for query in QUERIES:
        here = list(tdbg.sql(query, out(case)))
        assert list(tdbg.sql(query, f"{url}/{case}")) == here


def test_sql_joins_runs_of_tdbg_and_of_smdebug_wherever_they_are(
    url: str, tmp_path: Path
) -> None:
    put("pytorch", f"{url}/smdebug")
    copy_run(native(tmp_path / "run", "pytorch"), open_store(f"{url}/native"))
    query = (
        "select mode, mode_step, count(*), max(l2) - min(l2) from statistics "
        "where tensor = 'conv1.weight' group by all order by all"
    )
    both = list(tdbg.sql(query, [tmp_path / "run", out("pytorch")]))
    assert both
    assert {row[2:] for row in both} == {(2, 0.0)}
    assert list(tdbg.sql(query, url)) == both
    assert list(tdbg.sql(query, f"{url}/*")) == both
    runs = "select run, count(*) from statistics group by all order by all"
    assert [row[0] for row in tdbg.sql(runs, url)] == ["native", "smdebug"]


def test_the_command_prints_sql_of_what_smdebug_wrote(url: str) -> None:
    put("xgboost", f"{url}/job")
    query = "select name, max(value) from scalars group by all order by all"
    for place in (str(out("xgboost")), f"{url}/job"):
        code, text = verb("sql", place, query, "--json")
        assert code == 0
        assert "train-auc" in text


def verb(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(_tdbg, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize("case", CASES)
def test_a_directory_and_its_copy_in_a_store_do_not_differ(case: str, url: str) -> None:
    put(case, f"{url}/{case}")
    assert tdbg.diff(out(case), f"{url}/{case}").is_same


def test_two_directories_part_at_the_tensor_that_is_another_one(
    url: str, tmp_path: Path
) -> None:
    other = damaged("pytorch", "Net_fc.weight", 0, tmp_path / "other")
    put("pytorch", f"{url}/one")
    for one in (str(out("pytorch")), f"{url}/one"):
        first = tdbg.diff(one, other).first
        assert first is not None
        assert (first.name, first.step) == ("fc.weight", 0)
        code, text = verb("diff", one, str(other))
        assert code == 1
        assert "fc.weight" in text


def test_a_run_and_what_smdebug_wrote_part_where_they_differ(
    url: str, tmp_path: Path
) -> None:
    put("pytorch", f"{url}/job")
    same = native(tmp_path / "same", "pytorch")
    other = native(tmp_path / "other", "pytorch", wrong="conv1.weight")
    for place in (out("pytorch"), f"{url}/job"):
        assert tdbg.diff(same, place).is_same
        first = tdbg.diff(other, place).first
        assert first is not None
        assert (first.name, first.step) == ("conv1.weight", 0)


def test_listings_convert_nothing(url: str, tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "jobs"
    simple_run(folder / "run")
    copy_run(folder / "run", open_store(f"{url}/run"))
    put("pytorch", f"{url}/smdebug")
    shutil.copytree(out("pytorch"), folder / "smdebug")
    for place in (str(folder), url):
        code, text = verb("ls", place, "--json")
        rows = {row["run"]: row for row in json.loads(text)["runs"]}
        assert code == 0
        assert rows[f"{place}/smdebug"]["state"] == NOT_READ
        assert rows[f"{place}/run"]["state"] == "closed"
        assert not own_cache.exists() or not list(own_cache.iterdir())
    tdbg.create_trial(f"{url}/smdebug")
    _, text = verb("ls", url, "--json")
    states = [row["state"] for row in json.loads(text)["runs"]]
    assert states == ["closed", "closed"]


@pytest.mark.parametrize("is_far", [False, True])
def test_the_dashboard_lists_what_smdebug_wrote_and_reads_what_is_opened(
    url: str, tmp_path: Path, own_cache: Path, *, is_far: bool
) -> None:
    folder = tmp_path / "jobs"
    simple_run(folder / "run")
    copy_run(folder / "run", open_store(f"{url}/run"))
    for case in ("pytorch", "xgboost"):
        put(case, f"{url}/{case}")
        shutil.copytree(out(case), folder / case)
    runs = Runs([url if is_far else str(folder)])
    for rows in (listed(runs), told(runs)):
        assert rows["pytorch"]["state"] == rows["xgboost"]["state"] == NOT_READ
    ids = {runs.name(id_): id_ for id_ in runs.found()}
    assert runs.seen(ids["pytorch"])[1] == -1
    assert not own_cache.exists() or not list(own_cache.iterdir())
    opened = runs.open(ids["pytorch"])
    assert opened.trial.steps("GLOBAL") == [0, 2, 4, 6, 8, 10]
    rows = told(runs)
    assert rows["pytorch"]["state"] == "closed"
    assert rows["pytorch"]["verdict"]
    assert rows["xgboost"]["state"] == NOT_READ
    assert listed(runs)["pytorch"]["state"] == "closed"


def test_no_export_is_written_into_the_cache(url: str, own_cache: Path) -> None:
    put("pytorch", f"{url}/job")
    for place in (str(out("pytorch")), f"{url}/job"):
        code, text = verb("export", "tensorboard", place)
        assert code == 2
        assert "say in which folder" in text
    assert not list(own_cache.glob("*/tensorboard"))


def test_a_run_in_the_cache_is_asked_for_nothing(url: str) -> None:
    early = [each for each in files_of("pytorch") if each.name != END]
    put("pytorch", f"{url}/job", early)
    with pytest.raises(ConfigurationError, match="no training reads"):
        control.ask_to_stop(tdbg.create_trial(f"{url}/job"), {"reason": "x"})


def test_what_smdebug_wrote_is_found_below_a_url(url: str) -> None:
    put("pytorch", f"{url}/a/b")
    put("pytorch", f"{url}/a/c/d/e")
    assert find_runs(url) == [f"{url}/a/b"]  # Three levels below, as of a folder.
    assert find_runs(f"{url}/a/b") == [f"{url}/a/b"]
    assert find_runs(f"{url}/a/b/events") == []
