"""The dashboard lists and opens runs of a store: a server of S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import Dashboard, dashboard
from fault_proxy import FaultProxy, error
from object_stores import CANARIES
from planted import add_findings, finding
from run_builder import simple_run
from run_rows import listed, told
from store_runs import copy_run
from tdbg import remote
from tdbg.errors import ConfigurationError, StorageError
from tdbg.remote import open_store
from tdbg.run.findings import Severity
from tdbg.ui import places
from tdbg.ui.places import FarFolder
from tdbg.ui.runs import Runs

FOLDER = "s3://bucket/runs"


@pytest.fixture
def proxy(proxy: FaultProxy, tmp_path: Path) -> FaultProxy:
    """Before a store with three runs: one is sick, one is in training."""
    for name in ("healthy", "sick", "live"):
        simple_run(tmp_path / name)
        if name == "sick":
            found = finding("DeadRelu", "fc.weight", 3, Severity.ERROR)
            add_findings(tmp_path / name, found)
        store = open_store(f"{FOLDER}/{name}")
        copy_run(tmp_path / name, store, state="open" if name == "live" else "closed")
    return proxy


@pytest.fixture
def served(proxy: FaultProxy) -> Iterator[Dashboard]:
    assert proxy.n_faults == 0
    with dashboard(FOLDER, judge=True) as found:
        yield found


def rows(served: Dashboard) -> dict[str, dict[str, Any]]:
    """What is told of every run, by its name."""
    ids = [each["id"] for each in served.ask("/api/runs").json["runs"]]
    query = "&".join(f"run={id_}" for id_ in ids)
    answer = served.ask(f"/api/rows_of_runs?{query}")
    parts = [json.loads(line) for line in answer.body.splitlines()]
    return {row["name"]: row for part in parts for row in part["runs"]}


def test_runs_of_a_store_are_listed_told_and_opened(served: Dashboard) -> None:
    first = served.ask("/api/runs").json
    assert first["places"] == [FOLDER]
    assert first["troubles"] == []
    assert sorted(each["name"] for each in first["runs"]) == ["healthy", "live", "sick"]
    found = rows(served)
    assert {name: each["state"] for name, each in found.items()} == {
        "healthy": "closed",
        "sick": "closed",
        "live": "running",
    }
    assert found["sick"]["counts"]["error"] == 1
    for row in found.values():
        run = served.ask(f"/api/run?run={row['id']}").json
        assert run["path"] == f"{FOLDER}/{row['name']}"
        assert run["verdict"] == row["verdict"]
        # No finding would be kept, so nobody judges it unasked.
        assert run["judging"] is None
        envelope = f"/api/envelope?run={row['id']}&role=weight&field=rms"
        assert served.ask(envelope).status == 200


def test_credentials_are_in_no_answer(proxy: FaultProxy) -> None:
    with dashboard(FOLDER) as served:
        ids = [row["id"] for row in rows(served).values()]
        proxy.faults = error(403, "AccessDenied")
        answers = [served.ask("/api/runs")]
        for id_ in ids:
            answers += [
                served.ask(f"/api/{path}?run={id_}{more}")
                for path, more in (
                    ("run", ""),
                    ("rows_of_runs", ""),
                    ("envelope", "&role=weight&field=rms"),
                )
            ]
        text = "".join(each.body.decode("utf-8", "replace") for each in answers)
        assert not [each for each in CANARIES if each in text]
    with pytest.raises(ConfigurationError, match="must not hold credentials") as caught:
        Runs([f"s3://{CANARIES[0]}:{CANARIES[1]}@bucket/runs"])
    assert not [each for each in CANARIES if each in str(caught.value)]


def test_what_is_known_of_a_run_that_has_ended_asks_the_store_for_nothing(
    proxy: FaultProxy,
) -> None:
    runs = Runs([FOLDER])
    first = told(runs)
    live = next(id_ for id_ in runs.found() if runs.name(id_) == "live")
    # One in training is followed; a page that is open looks at it again and again.
    assert [id_ for id_ in runs.found() if runs.seen(id_)[1] >= 0] == [live]
    n_requests = len(proxy.requests)
    ended = [id_ for id_ in runs.found() if id_ != live]
    for _ in range(3):
        again = told(runs, *ended)
        assert again == {name: first[name] for name in ("healthy", "sick")}
        assert all(runs.seen(id_)[1] == -1 for id_ in ended)
        assert {"healthy", "sick"} <= listed(runs).keys()
    asked = [each for each in proxy.requests[n_requests:] if "live" not in str(each)]
    assert not asked


@pytest.mark.usefixtures("proxy")
def test_a_store_is_listed_again_only_when_it_is_time_and_in_no_ones_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[str] = []

    def counted(url: str) -> list[str]:
        listings.append(url)
        return remote.find_runs(url)

    folder = FarFolder(FOLDER, counted)
    assert len(folder.runs()) == len(folder.runs()) == 3
    assert listings == [FOLDER]
    simple_run(tmp_path / "new")
    copy_run(tmp_path / "new", open_store(f"{FOLDER}/new"))
    monkeypatch.setattr(places, "FAR_LIST_SECONDS", 0.0)
    monkeypatch.setattr(places, "_PATIENCE", 0.0)
    folder = FarFolder(FOLDER, counted)
    while len(folder.runs()) < 4:
        pass


@pytest.mark.usefixtures("proxy")
def test_runs_stay_while_their_store_does_not_answer_and_the_page_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "FAR_LIST_SECONDS", 0.0)
    monkeypatch.setattr(places, "_PATIENCE", 0.0)
    is_down = False

    def find(url: str) -> list[str]:
        if is_down:
            msg = "the store does not answer"
            raise StorageError(msg, file=url, kind="io")
        return remote.find_runs(url)

    folder = FarFolder(FOLDER, find)
    is_down = True
    while not folder.trouble:
        assert len(folder.runs()) == 3
    assert folder.trouble == "the store does not answer"
    is_down = False
    while folder.trouble:
        assert len(folder.runs()) == 3


def test_what_can_be_no_folder_of_a_store_is_refused_at_once(
    proxy: FaultProxy,
) -> None:
    with pytest.raises(ConfigurationError, match="give the folder"):
        Runs(["s3://bucket/run*"])
    with pytest.raises(ConfigurationError, match="name a bucket"):
        Runs(["s3://"])
    proxy.faults = error(403, "AccessDenied")
    with pytest.raises(StorageError):
        Runs([FOLDER])


def test_the_page_does_not_change_runs_of_a_store(served: Dashboard) -> None:
    ids = [each["id"] for each in served.ask("/api/runs").json["runs"]]
    for path, body in (("annotate", {"note": "x"}), ("delete", {"confirmed": True})):
        said = {"runs": ids, **body}
        found = served.ask(f"/api/{path}", method="POST", body=said).json["runs"]
        assert ["in a store" in each["error"] for each in found] == [True] * 3
    assert len(rows(served)) == 3


@pytest.mark.usefixtures("proxy")
def test_names_are_those_below_what_runs_here_and_there_have_in_common(
    tmp_path: Path,
) -> None:
    near = Runs([str(tmp_path / "sick"), str(tmp_path / "live")])
    assert sorted(map(near.name, near.found())) == ["live", "sick"]
    both = Runs([str(tmp_path / "sick"), FOLDER])
    names = sorted(map(both.name, both.found()))
    assert names[-3:] == [f"{FOLDER}/{name}" for name in ("healthy", "live", "sick")]
