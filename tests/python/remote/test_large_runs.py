"""A large run in S3 is opened and read with few requests, and hardly a byte too many.

Real servers and files: a gigabyte of values, and a thousand shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fault_proxy import FaultProxy
from object_stores import environment, moto_server, reset_moto
from run_builder import RunBuilder
from tdbg.remote import Uploader
from tdbg.trial import create_trial

URL = "s3://bucket/runs/large"
MEGABYTE = 1 << 20
VALUES = MEGABYTE  # Four megabytes of float32.

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that only counts; what is sent goes past it."""
    with moto_server() as port, FaultProxy(port) as proxy:
        reset_moto(port)
        for name, value in environment(f"http://127.0.0.1:{port}").items():
            monkeypatch.setenv(name, value)
        yield proxy


def ship(run: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send a run, and read through the proxy from now on; how many files were sent."""
    uploader = Uploader(run, URL, empties=True)
    uploader.prepare()
    assert uploader.run()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    return uploader.progress().n_files


def test_a_tensor_of_a_gigabyte_takes_six_requests_and_its_bytes(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(tmp_path / "run", shard_bytes=64 * MEGABYTE, codec="none") as run:
        for step in range(128):
            values = np.full(VALUES, step, np.float32)
            run.step(step, {"w": values, "gradient/w": -values})
            run.flush()
    ship(tmp_path / "run", proxy, monkeypatch)
    trial = create_trial(URL)
    assert len(trial.steps()) == 128
    assert len(proxy.requests) <= 4
    value = trial.tensor("gradient/w").value(77)
    assert len(proxy.requests) <= 6
    assert proxy.n_bytes <= value.nbytes + MEGABYTE
    np.testing.assert_array_equal(value, np.full(VALUES, -77.0))


@pytest.mark.nightly
def test_a_thousand_shards_are_opened_with_four_requests(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_shards = 1000
    with RunBuilder(tmp_path / "run", shard_bytes=60_000, codec="none") as run:
        for step in range(n_shards):
            run.step(step, {"w": np.full(16_000, step, np.float32)})
            if step % 20 == 0:
                run.flush()
    assert ship(tmp_path / "run", proxy, monkeypatch) >= 2 * n_shards
    trial = create_trial(URL)
    assert len(trial.steps()) == n_shards
    assert len(proxy.requests) <= 4
    assert trial.tensor("w").value(777)[0] == 777
    assert len(proxy.requests) <= 6
