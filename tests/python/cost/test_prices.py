"""A price file is taken as it is meant, or refused with the row and the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdbg.cost import read_prices
from tdbg.errors import ConfigurationError, StorageError

HEADER = (
    "name,price_per_hour,gpus,gpu,gpu_memory,cpus,memory,network_gbps,relative_speed"
)
BIG = "big,14.688,4,V100,16,32,244,10,1"
CPU = "cpu,0.4,0,,,8,32,,"
ROW = {
    "name": "big",
    "price_per_hour": 14.688,
    "gpus": 4,
    "gpu": "V100",
    "gpu_memory": 16,
    "cpus": 32,
    "memory": 244,
    "network_gbps": 10,
    "relative_speed": 1,
}


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_csv_and_json_say_the_same(tmp_path: Path) -> None:
    from_csv = read_prices(written(tmp_path, HEADER, BIG, CPU))
    assert list(from_csv) == ["big", "cpu"]
    assert from_csv["cpu"].gpu_memory is None
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"date": "2026-11-28", "prices": [ROW]}))
    assert read_prices(path)["big"] == from_csv["big"]
    path.write_text(json.dumps([{**ROW, "relative_speed": None}]))
    assert read_prices(path)["big"].relative_speed is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEADER.replace(",memory", ""), BIG], "line 1: .* is missing memory;"),
        ([HEADER.replace("cpus", "vcpus"), BIG], "missing cpus and has the .*'vcpus'"),
        (
            [HEADER, BIG.replace("14.688", "-1")],
            r"line 2 \(big\): price_per_hour is '-1'",
        ),
        ([HEADER, BIG.replace("14.688", "nan")], "price_per_hour is 'nan'"),
        ([HEADER, BIG.replace("14.688", "14,688")], "more cells than the header"),
        ([HEADER, "big,,4,V100,16,32,244,10,1"], "price_per_hour is ''"),
        ([HEADER, BIG.replace(",4,", ",2.5,")], "gpus is 2.5; give a whole number"),
        ([HEADER, BIG, CPU, BIG], "line 4: 'big' has a price already"),
        ([HEADER, " ,1,0,,,8,32,,"], "line 2: the row has no name"),
        ([HEADER], "has no prices"),
        ([""], "is empty; give a header"),
        (["name;price_per_hour", "big;1"], "is missing name"),
        ([HEADER, '"big'], "line 1: unexpected end"),
        (['{"prices": 3}'], "give a list of objects"),
        (["[1]"], "give a list of objects"),
        (['[{"name": "big"}]'], "entry 1: the price file is missing price_per_hour"),
        (["[" * 100_000], "is no JSON"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_prices(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none\.csv"):
        read_prices(tmp_path / "none.csv")
    binary: Any = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigurationError, match="no text in UTF-8"):
        read_prices(binary)
