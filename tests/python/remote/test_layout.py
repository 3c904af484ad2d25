from __future__ import annotations

import contextlib
import datetime as dt
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.errors import CorruptionError, UnsupportedFeature
from tdbg.remote.layout import (
    BlockObject,
    Manifest,
    ShippedFile,
    blocks_name,
    manifest_name,
    newest_manifests,
)

RUN = {"format": "tdbg-run", "version": 1, "uuid": "0" * 32, "created": "2026-11-29"}
NOW = dt.datetime(2026, 11, 29, 6, 0, tzinfo=dt.UTC)


def manifest() -> Manifest:
    return Manifest(
        run=RUN,
        writer="train-0-1",
        number=12,
        time=NOW,
        state="open",
        commit=bytes(range(192)),
        blocks=((blocks_name(9), 1000), (blocks_name(12), 10)),
        n_files=2,
        n_bytes=3000,
        uploads={"requests": 5, "failures": 1, "retries": 1},
    )


def block_object() -> BlockObject:
    shard = ShippedFile("000001.tds", 1000, ((0, b"head\n{"), (996, b"tail")))
    return BlockObject("train-0-1", (shard, ShippedFile("000001.tdi", 64)))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.decode(manifest().encode(), "m") == manifest()


def test_a_manifest_carries_the_commit_page_and_whose_it_is() -> None:
    assert len(manifest().commit_page) == 4096
    assert manifest().owner == bytes(range(64))
    assert manifest().run_uuid == bytes(16)


def test_a_block_object_is_read_as_it_was_written() -> None:
    content = block_object().encode()
    assert BlockObject.decode(content, "b") == block_object()


def test_of_each_writer_the_highest_manifest_of_a_listing_counts() -> None:
    paths = [
        "bucket/run/m/train-0-1/0000000009.json",
        "bucket/run/m/train-0-1/0000000010.json",
        "bucket/run/m/train-0-1/blocks-0000000011",
        "bucket/run/m/engine-0-1/0000000001.json",
        "bucket/run/m/engine-0-1/.tmp-1",
    ]
    assert newest_manifests(paths) == {"train-0-1": 10, "engine-0-1": 1}
    assert manifest_name(10) == "0000000010.json"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "tdbg-run"),
        ("run", {}),
        ("run", {"uuid": "x"}),
        ("state", "gone"),
        ("time", "yesterday"),
        ("time", "2026-11-29T06:00:00"),
        ("commit", "not base64!"),
        ("commit", "A" * 8000),
        ("number", -1),
        ("number", True),
        ("files", 2**63),
        ("blocks", [{"name": "../../x", "size": 1}]),
        ("blocks", {"name": 1}),
        ("uploads", {"requests": -1}),
    ],
)
def test_a_manifest_that_says_something_else_is_damage(key: str, value: object) -> None:
    document = json.loads(manifest().encode())
    with pytest.raises(CorruptionError, match=r"^m/12 is not what"):
        Manifest.decode(json.dumps({**document, key: value}).encode(), "m/12")


def test_every_cut_of_a_manifest_or_block_object_is_damage() -> None:
    whole, blocks = manifest().encode().strip(), block_object().encode()
    for n in range(len(whole)):
        with pytest.raises(CorruptionError):
            Manifest.decode(whole[:n], "m")
    for n in range(len(blocks)):
        with pytest.raises(CorruptionError):
            BlockObject.decode(blocks[:n], "b")
    with pytest.raises(CorruptionError):
        BlockObject.decode(blocks + b"x", "b")


EXAMPLES = int(os.environ.get("TDBG_FUZZ_EXAMPLES", "300"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=8,
)


def decode(content: bytes) -> None:
    """Read it as both; nothing but errors of tdbg may come out."""
    for read in (Manifest.decode, BlockObject.decode):
        with contextlib.suppress(CorruptionError, UnsupportedFeature):
            read(content, "m")


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.booleans(), st.integers(0, 5000), st.integers(0, 64), st.binary(max_size=64))
def test_no_bytes_of_a_manifest_raise_anything_but_an_error_of_tdbg(
    is_manifest: bool, at: int, n_replaced: int, inserted: bytes
) -> None:
    whole = (manifest() if is_manifest else block_object()).encode()
    at %= len(whole)
    decode(whole[:at] + inserted + whole[at + n_replaced :])
    decode(inserted)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_no_value_in_a_manifest_raises_anything_but_an_error_of_tdbg(
    data: st.DataObject,
) -> None:
    document = json.loads(manifest().encode())
    key = data.draw(st.sampled_from(sorted(document)))
    decode(json.dumps({**document, key: data.draw(JSON)}).encode())


@pytest.mark.parametrize(
    "listed",
    [
        [["../../RUN.json", 4, []]],
        [["000001.tds", 4, [[2, 3]]]],
        [["000001.tds", -4, []]],
        [["000001.tds", 4, [[0, 10**9]]]],
        [["000001.tds", 4]],
        [[1, 4, []]],
        7,
    ],
)
def test_a_block_object_names_files_of_its_writer_and_ranges_in_them(
    listed: object,
) -> None:
    head = {"format": "tdbg-blocks", "version": 1, "writer": "train-0-1"}
    content = json.dumps({**head, "files": listed}).encode() + b"\nabc"
    with pytest.raises(CorruptionError, match=r"^b is not what"):
        BlockObject.decode(content, "b")


def test_what_a_later_tdbg_wrote_says_so() -> None:
    document = json.loads(manifest().encode())
    later = json.dumps({**document, "version": 2}).encode()
    with pytest.raises(UnsupportedFeature, match="version 2; this tdbg reads 1"):
        Manifest.decode(later, "m")
