"""Benchmarks of reading ask what they say, and notice a wrong answer."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.reader import remote
from benchmarks.reader._remote_formats import Rows, Shards, Tensors

GIVEN = argparse.Namespace(
    rounds=1, quick=True, seed=1, server="moto", latency=0.0, what=[]
)
SMALL: dict[str, Any] = {
    "values": Tensors(2, 2, 1000),
    "shards": Shards(3),
    "rows": Rows(2, 5),
}
CONTENDERS = {
    "values": ["safetensors", "tdbg", "h5py", "zarr"],
    "shards": ["Parquet, count of rows", "tdbg"],
    "rows": ["Parquet", "tdbg", "h5py", "zarr"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", SMALL)
def test_all_contenders_answer_from_a_store_and_are_counted(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(remote.WHAT, what, lambda _: SMALL[what])
    before = dict(os.environ)
    (table,) = remote.measure(what, GIVEN).tables
    assert [row[0] for row in table.rows] == ["control", *CONTENDERS[what]]
    for *_, requests, megabytes in table.rows:
        assert int(requests) > 0
        assert float(megabytes) >= 0
    assert dict(os.environ) == before


def test_a_wrong_answer_of_one_contender_is_noticed() -> None:
    expected = np.ones(3, np.float32)
    remote.verify({"a": expected.copy()}, expected)
    with pytest.raises(WrongAnswer, match="b: other values"):
        remote.verify({"a": expected, "b": expected + 1}, expected)
    with pytest.raises(WrongAnswer, match="rows"):
        remote.verify({"rows": 1.1}, 1.0)
