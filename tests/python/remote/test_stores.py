from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdbg.errors import ConfigurationError, StorageError
from tdbg.remote import Store, check_url, is_url, open_store, scrub


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(f"{request.param}://{tmp_path}/run")


def test_urls_are_told_from_paths() -> None:
    assert is_url("s3://bucket/run")
    assert is_url("file:///runs/a")
    assert not is_url("runs/a")
    assert not is_url("C:/runs")
    assert not is_url(Path("runs"))


def test_what_was_written_is_read_and_listed(store: Store) -> None:
    store.write("RUN.json", b"{}")
    store.write("m/train-0-1/0000000001.json", b"first")
    assert store.read("RUN.json") == b"{}"
    assert store.read_range("m/train-0-1/0000000001.json", 1, 3)[0] == b"ir"
    assert store.size("RUN.json") == 2
    listed = store.list("m")
    assert [(each.name, each.size) for each in listed] == [
        ("m/train-0-1/0000000001.json", 5)
    ]
    store.write("m/train-0-1/0000000001.json", b"other")
    assert store.list("m") != listed
    assert store.list()[0].name == "RUN.json"
    assert store.list("ctl") == []


def test_a_file_is_sent_with_all_its_bytes(store: Store, tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "000001.tds").write_bytes(content)
    store.write_file("w/train-0-1/000001.tds", tmp_path / "000001.tds")
    assert store.read("w/train-0-1/000001.tds") == content


def test_a_new_object_is_not_written_over_another(store: Store) -> None:
    store.write("RUN.json", b"1", is_new=True)
    with pytest.raises(StorageError) as caught:
        store.write("RUN.json", b"2", is_new=True)
    assert caught.value.kind == "exists"
    assert store.read("RUN.json") == b"1"


def test_what_is_not_there_is_missing_and_may_be_removed(store: Store) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*/run/RUN\.json") as caught:
        store.read("RUN.json")
    assert caught.value.kind == "missing"
    store.remove("RUN.json")


def test_files_of_a_store_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/run")
    store.write("RUN.json", b"{}")
    assert (tmp_path / "run" / "RUN.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://", "name a bucket"),
        ("runs/a", "is not a URL"),
        ("s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/run", "must not hold"),
        ("nosuchscheme://bucket/run", "cannot be opened"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        open_store(url)
    assert "wJalr" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigurationError, match="pip install 'gcsfs'"):
        open_store("gs://bucket/run")


def test_a_slash_at_the_end_says_nothing() -> None:
    assert check_url("s3://bucket/run/") == "s3://bucket/run"


@pytest.mark.parametrize(
    "text",
    [
        "GET https://user:Zq3hidden9@host/run",
        "https://host/run?X-Amz-Credential=Zq3hidden9&X-Amz-Signature=Zq3hidden9",
        "the key AKIAZQ3HIDDEN9ABCD is not known",
        "Authorization: Zq3hidden9/20261129",
        "aws_secret_access_key='Zq3hidden9'",
    ],
)
def test_texts_lose_their_credentials(text: str) -> None:
    assert "hidden9" not in scrub(text).lower()


def test_texts_lose_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    assert scrub("refused wJalrXUtnFEMI/K7MDENG here") == "refused … here"
    assert scrub("s3://bucket/run has no RUN.json") == "s3://bucket/run has no RUN.json"
