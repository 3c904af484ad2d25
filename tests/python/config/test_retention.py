"""What a run keeps, as people write it."""

from __future__ import annotations

from typing import Any

import pytest

from tdbg.config import Retention, resolve
from tdbg.config.options import SessionOptions
from tdbg.config.retention import parse_bytes
from tdbg.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((1234, 1234), ("1234", 1234), ("2 kB", 2000), ("50GB", 50 * 10**9)),
        *(("1.5 GiB", 3 << 29), ("2TB", 2 * 10**12), ("7 mib", 7 << 20)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: object, size: int) -> None:
    assert parse_bytes("max_bytes", text) == size


@pytest.mark.parametrize(
    ("values", "last", "every"),
    [
        (None, None, 0),
        ("none", 0, 0),
        ("last 1000", 1000, 0),
        ("every 100", 0, 100),
        ("last 10, every 7", 10, 7),
        ("every 7,last 10", 10, 7),
    ],
)
def test_values_say_which_stay(values: str | None, last: Any, every: int) -> None:
    kept = Retention(values=values, max_bytes="1GB")
    assert (kept.last, kept.every) == (last, every)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("last 5", Retention(values="last 5")),
        ("50GB", Retention(max_bytes="50GB")),
        ("every 5, 2 GiB, last 3", Retention("every 5, last 3", 2 << 30)),
        ({"values": "none"}, Retention(values="none")),
    ],
)
def test_text_and_mappings_are_retentions(given: Any, kept: Retention) -> None:
    assert Retention.of(given) == kept
    assert resolve({"out_dir": "x", "retention": given}).retention == kept


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "says nothing"),
        ({"value": "none"}, "did you mean 'values'"),
        ({"values": "last"}, "'last 1000', 'every 100'"),
        ({"values": "last 0"}, "'last 1000'"),
        ({"values": "last 3, last 4"}, "'last 1000'"),
        ({"values": 1000}, "'last 1000'"),
        ({"max_bytes": "50 gigs"}, "units are B, KB"),
        ({"max_bytes": True}, "number of bytes"),
        ({"max_bytes": 1000}, "at least 1 MiB"),
        ("1GB, 2GB", "several sizes"),
        (5, "must be a Retention"),
    ],
)
def test_what_can_never_work_is_refused(given: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        resolve({"out_dir": "x", "retention": given})


def test_ranks_share_a_size() -> None:
    kept = Retention(max_bytes="4 MiB")
    assert SessionOptions(retention=kept).retention == kept
    with pytest.raises(ConfigurationError, match="shared by 8 ranks"):
        SessionOptions(retention=kept, world_size=8, include_workers="all")


def test_a_variable_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDBG_RETENTION", "last 5, 1GB")
    assert resolve({"out_dir": "x"}).retention == Retention("last 5", "1GB")
    argument = {"out_dir": "x", "retention": "none"}
    assert resolve(argument).retention == Retention("none")
    monkeypatch.setenv("TDBG_RETENTION", "sometimes")
    with pytest.raises(ConfigurationError, match="TDBG_RETENTION"):
        resolve({"out_dir": "x"})
