"""A run that an uploader sent to a server of S3 is read from there, with few requests.

Seen to fail when tables of indexes are read one by one, when a body that was cut is
believed, and when a refusal is taken for damage.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fault_proxy import (
    FaultProxy,
    Plan,
    cuts_answer,
    error,
    only,
    resets_after,
    share,
    slow,
)
from object_stores import CANARIES
from run_builder import RunBuilder
from store_runs import copy_run
from tdbg.cli import _tdbg
from tdbg.errors import NotARun, StorageError
from tdbg.remote import Uploader, find_runs, finding, open_store, stores
from tdbg.trial import Trial, create_trial

URL = "s3://bucket/runs/digits"
MEGABYTE = 1 << 20


def ship(path: Path) -> None:
    uploader = Uploader(path, URL, empties=False)
    uploader.prepare()
    with ThreadPoolExecutor() as pool:
        while not uploader.step(pool):
            uploader.pause()


def make(path: Path, steps: int, size: int, shard_bytes: int) -> None:
    rng = np.random.default_rng(0)
    with RunBuilder(path, shard_bytes=shard_bytes, codec="none") as run:
        for step in range(steps):
            values = rng.normal(size=size).astype(np.float32)
            run.step(step, {"w": values, "gradient/w": -values})
            if step % 20 == 0:
                run.flush()


def reads(proxy: FaultProxy) -> int:
    return len(proxy.requests)


@pytest.fixture
def whole(tmp_path: Path, proxy: FaultProxy) -> Trial:
    assert proxy.n_faults == 0
    make(tmp_path / "digits", 40, 5_000, 200_000)
    ship(tmp_path / "digits")
    return create_trial(tmp_path / "digits")


def test_opening_takes_four_requests_and_a_tensor_two_more(
    whole: Trial, proxy: FaultProxy
) -> None:
    before = reads(proxy)
    trial = create_trial(URL)
    assert trial.steps() == whole.steps()
    assert trial.status == "closed"
    assert reads(proxy) - before <= 4
    value = trial.tensor("w").value(17)
    assert reads(proxy) - before <= 6
    np.testing.assert_array_equal(value, whole.tensor("w").value(17))


FAULTS: dict[str, Plan] = {
    "5xx": error(503, "SlowDown"),
    "resets": resets_after(0),
    "cut bodies": cuts_answer(50),
    "slow": slow(2_000_000),
}


# Connections that the proxy resets it does not close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_faults_end_in_right_answers_or_typed_errors(
    whole: Trial, proxy: FaultProxy, fault: Plan
) -> None:
    n_right, trial = 0, None
    errors: list[StorageError] = []
    with proxy.broken(only(lambda r: r.method == "GET", share(0.3, fault, 1))):
        for step in whole.steps() * 2:
            try:
                trial = trial or create_trial(URL)
                found = trial.tensor("w").value(step)
                mean = trial.tensor("gradient/w").reduction_value(step, "mean")
            except StorageError as error:
                errors.append(error)
                continue
            np.testing.assert_array_equal(found, whole.tensor("w").value(step))
            assert mean == whole.tensor("gradient/w").reduction_value(step, "mean")
            n_right += 1
    assert n_right > 10
    assert {each.kind for each in errors} <= {"io", "missing"}
    assert not any(canary in str(each) for canary in CANARIES for each in errors)
    assert create_trial(URL).problems() == []


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
def test_credentials_that_expire_are_an_error_that_tells_none(
    whole: Trial, proxy: FaultProxy, code: str
) -> None:
    trial = create_trial(URL)
    with proxy.broken(error(403, code)):
        with pytest.raises(StorageError) as it:
            trial.tensor("w").value(17)
        assert it.value.kind == "denied"
        with pytest.raises(StorageError) as it:
            create_trial(URL)
        assert it.value.kind == "denied"
    assert not any(canary in str(it.value) for canary in CANARIES)
    found = trial.tensor("w").value(17)
    np.testing.assert_array_equal(found, whole.tensor("w").value(17))


@pytest.mark.usefixtures("whole")
def test_where_there_is_no_run_or_bucket_it_is_said() -> None:
    with pytest.raises(NotARun, match="did you mean s3://bucket/runs/digits"):
        create_trial("s3://bucket/runs/digitz")
    with pytest.raises(StorageError) as it:
        create_trial("s3://no-bucket/runs/digits")
    assert it.value.kind == "missing"
    assert find_runs("s3://bucket") == [URL]


@pytest.mark.usefixtures("proxy")
def test_a_run_that_was_copied_by_hand_is_read_alike(tmp_path: Path) -> None:
    make(tmp_path / "digits", 10, 500, 200_000)
    copy_run(tmp_path / "digits", open_store(URL))
    assert create_trial(URL).steps() == list(range(10))


def test_an_object_that_is_replaced_between_two_reads_is_no_data(
    whole: Trial,
) -> None:
    trial = create_trial(URL)
    right = whole.tensor("w")
    np.testing.assert_array_equal(trial.tensor("w").value(0), right.value(0))
    store = open_store(URL)
    for name in [each.name for each in store.list("w") if each.name[-1] == "s"]:
        content = bytearray(store.read(name))
        content[-1] ^= 1
        store.write(name, bytes(content))
    n_replaced = 0
    for step in whole.steps():
        try:
            found = trial.tensor("w").value(step)
        except StorageError as error:
            n_replaced += "was replaced while it was read" in str(error)
        else:  # Of a shard that was not begun before, or of bytes that are cached.
            np.testing.assert_array_equal(found, right.value(step))
    assert n_replaced > 0


def test_runs_are_listed_by_pages_where_they_are_small(
    tmp_path: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PAGE_KEYS", 50)
    make(tmp_path / "digits", 5, 100, 200_000)
    names = [f"run-{i:02}" for i in range(30)]
    for name in names:
        copy_run(tmp_path / "digits", open_store(f"s3://bucket/runs/{name}"))
    store = open_store("s3://bucket/runs/run-07")  # Has many files: they are skipped.
    for i in range(120):
        store.write(f"w/train-0-1/{i:06}.old", b"")
    urls = [f"s3://bucket/runs/{name}" for name in names]
    monkeypatch.setattr(finding, "RUNS_A_PAGE", 5)
    before = reads(proxy)
    found = find_runs("s3://bucket/runs")
    assert found == urls
    n_objects = 30 * 5  # RUN.json, a manifest, a block object, a shard and its index.
    assert reads(proxy) - before <= n_objects // 50 + 2
    # What it found is opened without another listing.
    before = reads(proxy)
    assert create_trial(found[3]).steps() == list(range(5))
    assert not any(each.is_list for each in proxy.requests[before:])
    # Where pages bring few runs, folders are listed, at once.
    monkeypatch.setattr(finding, "RUNS_A_PAGE", 1000)
    assert find_runs("s3://bucket/runs") == urls


def test_ls_asks_for_one_listing_and_the_files_of_each_run(
    tmp_path: Path, proxy: FaultProxy
) -> None:
    make(tmp_path / "digits", 5, 100, 200_000)
    for i in range(20):
        copy_run(tmp_path / "digits", open_store(f"s3://bucket/runs/{i:02}"))
    before = reads(proxy)
    told = CliRunner().invoke(_tdbg, ["ls", "s3://bucket/runs", "--json"])
    assert [each["steps"] for each in json.loads(told.stdout)["runs"]] == [5] * 20
    asked = proxy.requests[before:]
    assert sum(each.is_list for each in asked) == 1
    # A manifest, a list of files, and the data of what is shown.
    assert len(asked) <= 1 + 20 * 6
