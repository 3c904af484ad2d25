"""Tags and notes beside the runs: whole under several writers, bounded, harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.errors import ConfigurationError, NotARun, StorageError
from tdbg.run.annotations import (
    ANNOTATIONS_FILE,
    Annotation,
    annotate,
    annotations_in,
)
from tdbg.run.directory import create_run
from tdbg.run.removal import remove_run


def of(path: Path) -> Annotation | None:
    return annotations_in(path.parent).get(create_run(path).uuid.hex())


def test_what_was_said_is_read_again_and_changes_add_to_it(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    assert annotations_in(tmp_path) == {}
    annotate(tmp_path / "a", add_tags=["x", "y", "x"], note="first")
    annotate(tmp_path / "a", add_tags=["z"], remove_tags=["x"])
    found = annotate(tmp_path / "a", archived=True)
    assert found == Annotation(("y", "z"), "first", archived=True)
    assert of(tmp_path / "a") == found


def test_the_run_itself_stays_as_it_was(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    before = sorted(each.name for each in (tmp_path / "a").iterdir())
    annotate(tmp_path / "a", note="said")
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == before


def test_what_is_taken_back_leaves_nothing(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    annotate(tmp_path / "a", add_tags=["x"], note="n", archived=True)
    annotate(tmp_path / "a", remove_tags=["x"], note="", archived=False)
    assert annotations_in(tmp_path) == {}


def test_a_run_keeps_it_under_a_new_name_and_a_new_run_of_the_old_name_does_not(
    tmp_path: Path,
) -> None:
    create_run(tmp_path / "a")
    annotate(tmp_path / "a", add_tags=["mine"])
    (tmp_path / "a").rename(tmp_path / "b")
    create_run(tmp_path / "a")
    assert of(tmp_path / "b") == Annotation(("mine",))
    assert of(tmp_path / "a") is None


def test_what_was_said_goes_with_the_run(tmp_path: Path) -> None:
    for name in "ab":
        create_run(tmp_path / name)
        annotate(tmp_path / name, note=name)
    remove_run(tmp_path / "a", dry_run=True)
    assert len(annotations_in(tmp_path)) == 2
    remove_run(tmp_path / "a")
    assert [each.note for each in annotations_in(tmp_path).values()] == ["b"]


WRITER = """
import sys
from tdbg.run.annotations import annotate
for i in range(25):
    annotate(sys.argv[1], add_tags=[f"{sys.argv[2]}-{i}"], remove_tags=["none"])
    annotate(sys.argv[1], remove_tags=[f"{sys.argv[2]}-{i}" if i % 5 else "none"])
"""


def test_writers_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    for name in "ab":
        create_run(tmp_path / name)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / run), who])
        for run, who in (("a", "one"), ("a", "two"), ("b", "three"))
    ]
    while any(each.poll() is None for each in writers):
        annotations_in(tmp_path)  # Whole at every moment.
    assert [each.returncode for each in writers] == [0, 0, 0]
    kept = range(0, 25, 5)
    a, b = of(tmp_path / "a"), of(tmp_path / "b")
    assert a is not None
    assert b is not None
    assert set(a.tags) == {f"{who}-{i}" for who in ("one", "two") for i in kept}
    assert set(b.tags) == {f"three-{i}" for i in kept}


# --- What can never be kept ---------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"add_tags": ["two words"]}, "a tag is a word"),
        ({"add_tags": [""]}, "a tag is a word"),
        ({"add_tags": ["x" * 65]}, "a tag is a word"),
        ({"add_tags": ["\x1b[2J"]}, "a tag is a word"),
        ({"add_tags": [f"t{i}" for i in range(33)]}, "at most 32 tags"),
        ({"note": "x" * 4001}, "at most 4000 characters"),
        ({"note": 3}, "at most 4000 characters"),
        ({"archived": "yes"}, "archived must be true or false"),
    ],
)
def test_what_is_too_long_or_no_word_is_refused_and_changes_nothing(
    tmp_path: Path, said: dict[str, object], reason: str
) -> None:
    create_run(tmp_path / "a")
    annotate(tmp_path / "a", note="kept")
    with pytest.raises(ConfigurationError, match=reason):
        annotate(tmp_path / "a", **said)  # type: ignore[arg-type]
    assert of(tmp_path / "a") == Annotation(note="kept")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        annotate(tmp_path, note="of nothing")


# --- Files of others ----------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind"), [("nonsense", "damage"), ('{"version": 99}', "unsupported")]
)
def test_a_file_that_cannot_be_read_is_told_and_never_overwritten(
    tmp_path: Path, content: str, kind: str
) -> None:
    create_run(tmp_path / "a")
    (tmp_path / ANNOTATIONS_FILE).write_text(content)
    for ask in (
        lambda: annotations_in(tmp_path),
        lambda: annotate(tmp_path / "a", note="x"),
    ):
        with pytest.raises(StorageError) as raised:
            ask()
        assert raised.value.kind == kind
    assert (tmp_path / ANNOTATIONS_FILE).read_text() == content


def test_entries_that_make_no_sense_hide_no_other(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    annotate(tmp_path / "a", note="good")
    file = tmp_path / ANNOTATIONS_FILE
    content = json.loads(file.read_text())
    content["runs"] |= {"1": 3, "2": {"tags": 7}, "3": {"note": []}, "4": {"tags": [1]}}
    file.write_text(json.dumps(content))
    found = annotations_in(tmp_path)
    assert of(tmp_path / "a") == Annotation(note="good")
    assert all(
        each in (Annotation(), Annotation(note="good")) for each in found.values()
    )
    # What a later version added is kept.
    annotate(tmp_path / "a", note="better")
    assert json.loads(file.read_text())["runs"]["2"] == {"tags": 7}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    target = tmp_path / "secret"
    target.write_text("{}")
    (tmp_path / ANNOTATIONS_FILE).symlink_to(target)
    with pytest.raises(StorageError):
        annotate(tmp_path / "a", note="x")
    assert target.read_text() == "{}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    create_run(tmp_path / "a")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="cannot write"):
            annotate(tmp_path / "a", note="x")
    finally:
        tmp_path.chmod(0o700)
