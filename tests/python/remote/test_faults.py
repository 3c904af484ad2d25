"""What networks and stores do to an uploader.

Real servers of S3 stand behind a proxy that injects faults.  Whatever it does, nothing
raises, no partial object is visible, manifests name only what is there, and when the
store heals, everything is there, and counted exactly.

`make test-faults` repeats this with 100 seeds for each fault.  Seen to fail when
aiohttp repeats requests that nobody counts, and when the size of an object that a store
has confirmed is not looked at.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_proxy import (
    FaultProxy,
    Plan,
    Request,
    cuts_answer,
    error,
    first,
    loses_answer,
    only,
    resets_after,
    share,
    slow,
    stalls,
)
from moto_proxy import proxied
from object_stores import has_rclone, rclone_server
from shipped_runs import (
    check_promises,
    check_shipped,
    files_of,
    finished_run,
    newest_of,
    write_shards,
    writer_of,
)
from tdbg.remote import Uploader, attempts, open_store, shipment, stores
from tdbg.remote import uploader as uploader_module

URL = "s3://bucket/runs/a"
SEEDS = range(1, 1 + int(os.environ.get("TDBG_TEST_FAULT_SEEDS", "1")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four shards whose writer has closed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    finished_run(path, 3)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_module, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(attempts, "OPEN_PAUSE", (0.02, 0.04))
    monkeypatch.setattr(attempts, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(shipment, "FILES_A_MANIFEST", 2)


def of_method(*methods: str) -> Callable[[Request], bool]:
    return lambda request: request.method in methods


FAULTS: dict[str, Callable[[int], Plan]] = {
    "500": lambda seed: share(0.3, error(500, "InternalError"), seed),
    "503 at 10 %": lambda seed: share(0.1, error(503, "SlowDown"), seed),
    "503 at 50 %": lambda seed: share(0.5, error(503, "SlowDown"), seed),
    "503 always": lambda seed: first(10 + seed % 10, error(503, "SlowDown")),
    "429": lambda seed: share(0.3, error(429, "TooManyRequests"), seed),
    "expired token": lambda seed: first(3 + seed % 5, error(403, "ExpiredToken")),
    "resets before anything": lambda seed: share(0.3, resets_after(0), seed),
    "resets after some KiB": lambda seed: share(
        0.3, resets_after(1024 * (seed % 100)), seed
    ),
    "lost answers": lambda seed: only(
        of_method("PUT", "DELETE"), share(0.4, loses_answer, seed)
    ),
    "404 after PUT": lambda seed: only(
        of_method("HEAD"), share(0.4, error(404, "NoSuchKey"), seed)
    ),
    "cut answers": lambda seed: only(
        of_method("GET"), share(0.4, cuts_answer(10), seed)
    ),
    "timeouts": lambda seed: share(0.1, stalls(4.5), seed),
    "slow": lambda seed: share(0.3, slow(1_000), seed),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost_and_everything_is_counted(
    proxy: FaultProxy,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    seed: int,
) -> None:
    # A busy machine answers late, too, which would count as a failure.
    patience = {"slow": 0.3, "timeouts": 3.0}.get(name, stores.READ_SECONDS)
    monkeypatch.setattr(stores, "READ_SECONDS", patience)
    original = files_of(run)
    uploader = Uploader(run, URL, empties=True)
    uploader.prepare()
    with proxy.broken(FAULTS[name](seed)):
        assert uploader.run()
    counts = uploader.progress().uploads
    n_requests = len(proxy.requests)
    check_shipped(open_store(URL), original)
    assert files_of(run) == {}
    if name == "slow":  # That is no failure, but where it comes to a timeout.
        assert counts["retries"] <= counts["failures"] <= proxy.n_faults
        return
    assert counts["failures"] == proxy.n_faults
    # s3fs lists what it cannot find.
    n_listings = proxy.n_faults if name == "404 after PUT" else 0
    assert counts["requests"] == n_requests - n_listings
    # What was not removed is not asked for again at once.
    assert 0 <= counts["failures"] - counts["retries"] <= 6


def test_while_the_store_is_broken_whatever_is_there_is_right(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    writer = writer_of(tmp_path / "run")
    uploader = Uploader(tmp_path / "run", URL, empties=False)
    uploader.prepare()
    is_needed = True
    thread = threading.Thread(
        target=uploader.run, kwargs={"is_needed": lambda: is_needed}
    )
    thread.start()
    try:
        with proxy.broken(share(0.4, error(503, "SlowDown"), 3)):
            for _ in range(4):
                write_shards(writer, 1)
        # Asked without faults, but in the middle of it.
        check_promises(open_store(URL), files_of(tmp_path / "run"))
    finally:
        writer.close()
        is_needed = False
        thread.join(60)
    assert not thread.is_alive()
    check_shipped(open_store(URL), files_of(tmp_path / "run"))
    assert newest_of(open_store(URL))["train-0-1"].state == "closed"


def test_an_open_circuit_asks_at_most_once_a_second(
    proxy: FaultProxy, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "OPEN_PAUSE", (1.0, 1.2))
    uploader = Uploader(run, URL, empties=False)
    uploader.prepare()
    before = len(proxy.times)
    with proxy.broken(first(9, error(503, "SlowDown"))):
        assert uploader.run()
    times = proxy.times[before:][:9]
    open_from = attempts.FAILURES_TO_OPEN + uploader_module.THREADS
    gaps = [b - a for a, b in itertools.pairwise(times[open_from:])]
    assert all(gap > 0.9 for gap in gaps)


def test_stale_listings_cost_nothing(proxy: FaultProxy, run: Path) -> None:
    proxy.stale_lists = True
    original = files_of(run)
    for _ in range(2):
        uploader = Uploader(run, URL, empties=False)
        uploader.prepare()
        assert uploader.run()
    proxy.stale_lists = False
    check_shipped(open_store(URL), original)


@pytest.mark.skipif(not has_rclone(), reason="rclone is not installed")
def test_another_server_of_s3_is_served_as_well(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = files_of(run)
    with (
        rclone_server(tmp_path / "objects") as port,
        proxied(port, monkeypatch) as proxy,
    ):
        uploader = Uploader(run, URL, empties=True)
        uploader.prepare()
        with proxy.broken(share(0.2, error(503, "SlowDown"), 1)):
            assert uploader.run()
        assert uploader.progress().uploads["failures"] == proxy.n_faults > 0
        check_shipped(open_store(URL), original)
