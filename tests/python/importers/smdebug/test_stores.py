"""What smdebug wrote to a bucket becomes the run that a copy on disk becomes.

Seen to fail when a store that does not answer is taken for damage, and when what came
after a listing is taken for all that there is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tdbg
from fault_proxy import FaultProxy, Request, error, only
from smdebug_corpus import CASES, CORPUS, END, files_of, put
from tdbg.cli import _tdbg
from tdbg.remote import open_store

URL = "s3://bucket/jobs/debug-output"


def imported(run: Path) -> dict[str, Any]:
    arguments = ["import", "smdebug", URL, str(run), "--json"]
    told = CliRunner().invoke(_tdbg, arguments, catch_exceptions=False)
    found: dict[str, Any] = json.loads(told.output)
    return found


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("case", CASES)
def test_a_bucket_holds_what_a_copy_of_it_holds(case: str, tmp_path: Path) -> None:
    put(case, URL, files_of(case))
    assert imported(tmp_path / "run")["lost"] == 0
    here = tdbg.create_trial(CORPUS / case / "out")
    there = tdbg.create_trial(tmp_path / "run")
    assert there.tensor_names() == here.tensor_names()
    assert there.workers() == here.workers()
    assert there.steps("GLOBAL", "any") == here.steps("GLOBAL", "any")
    compared = 0
    for name in here.tensor_names():
        one, other = here.tensor(name), there.tensor(name)
        assert (one.role, one.aliases) == (other.role, other.aliases)
        for step in one.steps("GLOBAL", "values"):
            np.testing.assert_array_equal(
                one.value(step, "GLOBAL"), other.value(step, "GLOBAL")
            )
            compared += 1
    assert compared > 0


def test_each_object_is_fetched_once(proxy: FaultProxy, tmp_path: Path) -> None:
    put("pytorch", URL, files_of("pytorch"))
    proxy.requests.clear()
    imported(tmp_path / "run")
    objects = [each.path for each in proxy.requests if "list-type" not in each.path]
    assert len(objects) <= len(files_of("pytorch")) + 1
    proxy.requests.clear()
    assert imported(tmp_path / "run")["steps"] == 0
    assert len(proxy.requests) < 10


@pytest.mark.usefixtures("proxy")
def test_what_came_since_is_taken_in_by_the_next_import(tmp_path: Path) -> None:
    files = files_of("pytorch")
    names = sorted(each.name for each in files if each.parent.parent.name == "index")
    step = names[len(names) // 2].partition("_")[0]
    early = [
        each
        for each in files
        if each.name != END and (each.name < step or each.name.startswith("worker"))
    ]
    put("pytorch", URL, early)
    first = imported(tmp_path / "run")
    assert not first["ended"]
    put("pytorch", URL, files)
    second = imported(tmp_path / "run")
    assert second["ended"]
    assert first["steps"] > 0
    assert second["steps"] > 0
    here = tdbg.create_trial(CORPUS / "pytorch" / "out")
    there = tdbg.create_trial(tmp_path / "run")
    assert there.steps("GLOBAL", "any") == here.steps("GLOBAL", "any")


def test_a_store_that_does_not_answer_costs_no_tensor(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    put("pytorch", URL, files_of("pytorch"))
    is_late = Later(3)
    proxy.faults = only(is_late, error(503, "SlowDown"))
    arguments = ["import", "smdebug", URL, str(tmp_path / "run")]
    told = CliRunner().invoke(_tdbg, arguments)
    assert told.exit_code == 3
    assert "SlowDown" in told.output
    proxy.faults = only(lambda _: False, error(503, "SlowDown"))
    done = imported(tmp_path / "run")
    assert (done["lost"], done["ended"]) == (0, True)
    here = tdbg.create_trial(CORPUS / "pytorch" / "out")
    there = tdbg.create_trial(tmp_path / "run")
    assert there.lost_records().records == 0
    assert there.steps("GLOBAL", "any") == here.steps("GLOBAL", "any")


class Later:
    """Whether an event file is asked for after so many others."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, request: Request) -> bool:
        if request.method == "GET" and "/events/" in request.path:
            self.left -= 1
        return self.left < 0


@pytest.mark.usefixtures("proxy")
def test_a_folder_that_smdebug_did_not_write_is_refused(tmp_path: Path) -> None:
    open_store(URL).write("notes.txt", b"none")
    arguments = ["import", "smdebug", URL, str(tmp_path / "run")]
    told = CliRunner().invoke(_tdbg, arguments)
    assert told.exit_code == 3
    assert f"{URL} is not what smdebug's hook wrote" in told.output
    assert not (tmp_path / "run").exists()
