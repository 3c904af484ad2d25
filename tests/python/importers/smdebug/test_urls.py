"""A URL of what smdebug wrote opens as a directory of it does, with every verb.

Seen to fail when a listing converts, when a store that is silent for a while ends the
following of it, and when a request is written where no training reads it.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from click.testing import CliRunner

import tdbg
from fault_proxy import FaultProxy, error
from smdebug_corpus import CASES, CORPUS, END, files_of, put
from tdbg.cli import _tdbg
from tdbg.errors import StorageError
from tdbg.importers import opening
from tdbg.remote import ListedRun, find_runs, stores

pytestmark = pytest.mark.usefixtures("own_cache")

PREFIX = "jobs/debug-output"
URL = f"s3://bucket/{PREFIX}"


def verb(*arguments: object) -> tuple[int, str]:
    told = CliRunner().invoke(_tdbg, [str(each) for each in arguments])
    assert told.exception is None or isinstance(told.exception, SystemExit), told
    return told.exit_code, told.output


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("case", CASES)
def test_a_url_opens_as_the_directory_does(case: str) -> None:
    put(case, URL)
    here, there = tdbg.create_trial(CORPUS / case / "out"), tdbg.create_trial(URL)
    assert there.name == "debug-output"
    assert there.status == here.status
    assert there.workers() == here.workers()
    assert there.steps("GLOBAL", "any") == here.steps("GLOBAL", "any")
    assert there.tensor_names() == here.tensor_names()
    for name in here.tensor_names():
        one, other = here.tensor(name), there.tensor(name)
        for step in one.steps("GLOBAL", "values"):
            np.testing.assert_array_equal(
                one.value(step, "GLOBAL"), other.value(step, "GLOBAL")
            )


def test_each_object_is_fetched_once_and_each_opening_lists_little(
    proxy: FaultProxy,
) -> None:
    put("pytorch", URL)
    proxy.requests.clear()
    tdbg.create_trial(URL)
    objects, listings = asked(proxy)
    assert len(objects) == len(set(objects)) == len(files_of("pytorch")) - 1
    # What came before the end is listed once more.
    assert listings == 2
    proxy.requests.clear()
    tdbg.create_trial(URL)
    assert asked(proxy) == ([], 1)


def asked(proxy: FaultProxy) -> tuple[list[str], int]:
    """The objects that were fetched, and how often all of them were listed."""
    paths = [unquote(each.path) for each in proxy.requests]
    listings = [each for each in paths if f"prefix={PREFIX}/&delimiter=&" in each]
    return [each for each in paths if "list-type" not in each], len(listings)


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("keys", [1000, 5])
def test_it_is_found_by_pages_and_level_by_level(
    keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PAGE_KEYS", keys)
    put("pytorch", URL)
    put("xgboost", "s3://bucket/jobs/other")
    found = find_runs("s3://bucket")
    assert found == [URL, "s3://bucket/jobs/other"]
    assert all(isinstance(each, ListedRun) and each.is_of_smdebug for each in found)
    assert tdbg.create_trial(found[0]).steps("GLOBAL") == [0, 2, 4, 6, 8, 10]


def early_and_late() -> tuple[list[Path], list[Path]]:
    """The files of the first half of a training, and the others."""
    files = files_of("pytorch")
    names = sorted(each.name for each in files if each.parent.parent.name == "index")
    step = names[len(names) // 2].partition("_")[0]
    early = [
        each
        for each in files
        if each.name != END and (each.name < step or each.name.startswith("worker"))
    ]
    return early, [each for each in files if each not in early]


def wait_until_whole(trial: tdbg.Trial) -> None:
    deadline = time.monotonic() + 60
    while not trial.loaded_all_steps:
        assert time.monotonic() < deadline, trial.problems()
        time.sleep(0.05)


@pytest.mark.usefixtures("proxy")
def test_a_trial_of_a_growing_url_sees_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "FOLLOW_SECONDS", 0.05)
    monkeypatch.setattr(opening, "_PATIENCE", 1)
    early, late = early_and_late()
    put("pytorch", URL, early)
    trial = tdbg.create_trial(URL)
    first = trial.steps("GLOBAL", "any")
    assert first
    assert not trial.loaded_all_steps
    put("pytorch", URL, late)
    wait_until_whole(trial)
    whole = tdbg.create_trial(CORPUS / "pytorch" / "out").steps("GLOBAL", "any")
    assert first < trial.steps("GLOBAL", "any") == whole


def test_a_store_that_is_silent_for_a_while_is_trouble_and_no_end(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FOLLOW_SECONDS", 0.05)
    monkeypatch.setattr(opening, "_PATIENCE", 1)
    early, late = early_and_late()
    put("pytorch", URL, early)
    trial = tdbg.create_trial(URL)
    with proxy.broken(error(503, "SlowDown")):
        deadline = time.monotonic() + 60
        while not trial.problems():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "SlowDown" in str(trial.problems()[0])
        with pytest.raises(StorageError, match="SlowDown"):
            tdbg.create_trial(URL)
    put("pytorch", URL, late)
    wait_until_whole(trial)
    assert trial.problems() == []
    assert trial.lost_records().records == 0


def test_a_conversion_that_was_cut_short_is_gone_on_with(
    proxy: FaultProxy,
) -> None:
    put("pytorch", URL)
    fetched: set[str] = set()
    with proxy.broken(
        lambda request: (
            error(503, "SlowDown")(request) if "000000000006" in request.path else None
        )
    ):
        proxy.requests.clear()
        with pytest.raises(StorageError, match="SlowDown"):
            tdbg.create_trial(URL)
        fetched = {each.path for each in proxy.requests if "/events/" in each.path}
    proxy.requests.clear()
    trial = tdbg.create_trial(URL)
    again = {each.path for each in proxy.requests if "/events/" in each.path}
    assert {each for each in fetched & again if "000000000006" not in each} == set()
    assert trial.lost_records().records == 0
    assert trial.steps("GLOBAL") == [0, 2, 4, 6, 8, 10]


LINES = [
    "ls {url}",
    "ls {url} --json",
    "show {url}",
    "show {url} --json",
    "show {url} Net_conv1.weight --step 0",
    "check {url}",
    "watch {url}",
    "report {url} --out {here}/report.html",
    "sql {url} 'select count(*) from statistics'",
    "diff {url} {url}",
    "export tensorboard {url} --out {here}/board",
    "export npz {url} --out {here}/values",
]


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("line", LINES)
def test_verbs_take_a_url(tmp_path: Path, line: str) -> None:
    put("pytorch", URL)
    words = shlex.split(line.format(url=URL, here=tmp_path))
    code, text = verb(*words)
    assert code in (0, 1), text
    assert "no run" not in text


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize(
    "line", ["attach {url} --collection weights", "stop {url}", "profile {url}"]
)
def test_verbs_that_ask_a_training_refuse_what_nobody_reads(
    line: str, tmp_path: Path
) -> None:
    early, _ = early_and_late()
    put("pytorch", URL, early)
    code, text = verb(*line.format(url=URL).split())
    assert code == 3
    assert "smdebug wrote it, so tdbg only reads it" in text
    verb("import", "smdebug", URL, tmp_path / "run")
    code, text = verb(*line.format(url=tmp_path / "run").split())
    assert code == 2
    assert "no training reads what is asked there" in text
