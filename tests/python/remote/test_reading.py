"""A run in a store is read as the same run in a directory is.

Seen to fail when a range is taken from the wrong offset, when columns are read without
their checksums, and when a file that shrank is believed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_builder import RunBuilder, simple_run
from store_runs import copy_run, copy_writer
from tdbg.errors import NotARun, StorageError, TdbgError
from tdbg.remote import Store, fetching, find_runs, followed, open_store
from tdbg.trial import Trial, create_trial

WRITER = "train-0-1"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSES", (0.0,))


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://bucket-{uuid.uuid4().hex}/runs/digits")


def many_shards(path: Path, steps: int = 40) -> None:
    """A run of several shards, with values that are stored as differences, too."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(40, 50)).astype(np.float32)
    with RunBuilder(path, shard_bytes=64 << 10) as run:
        for step in range(steps):
            weight = weight + np.float32(0.01)
            run.scalar(step, "loss", float(weight.mean()))
            run.event(6, {"text": f"step {step}"}, step)
            run.histogram(step, "fc.weight", weight)
            gradient = rng.normal(size=(40, 50))
            run.step(step, {"fc.weight": weight, "gradient/fc.weight": gradient})


def answers(trial: Trial) -> dict[str, Any]:
    """What a trial says of everything, as plain values."""
    names = trial.tensor_names()
    return {
        "names": names,
        "steps": trial.steps(),
        "status": trial.status,
        "created": trial.created,
        "uuid": trial.uuid,
        "problems": trial.problems(),
        "events": trial.events(),
        "attempts": trial.attempts(),
        "of": {name: of_tensor(trial, name) for name in names},
        "verified": trial.verify(),
    }


def of_tensor(trial: Trial, name: str) -> dict[str, Any]:
    tensor = trial.tensor(name)
    steps = tensor.steps()
    return {
        "steps": steps,
        "values": {step: asked(lambda s=step: tensor.value(s)) for step in steps},
        "mean": {
            step: asked(lambda s=step: tensor.reduction_value(s, "mean"))
            for step in steps
        },
    }


def asked(question: Callable[[], Any]) -> Any:
    try:
        found = question()
    except TdbgError as error:
        return type(error), str(error)
    return found.tolist() if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize("make", [simple_run, many_shards])
def test_every_answer_is_that_of_the_directory(
    tmp_path: Path, store: Store, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "digits")
    copy_run(tmp_path / "digits", store)
    here, there = create_trial(tmp_path / "digits"), create_trial(store.url)
    assert there.path == store.url
    assert there.name == here.name
    expected = answers(here)
    assert expected["of"]
    assert answers(there) == expected


def test_a_file_url_of_what_was_shipped_is_read_by_its_manifests(
    tmp_path: Path,
) -> None:
    simple_run(tmp_path / "digits")
    copied = open_store(f"file://{tmp_path}/copied")
    copy_run(tmp_path / "digits", copied)
    assert create_trial(copied.url).steps() == create_trial(tmp_path / "digits").steps()
    plain = create_trial(f"file://{tmp_path}/digits")
    assert plain.path == str(tmp_path / "digits")


def test_what_is_shipped_later_is_seen_and_what_is_under_way_is_no_loss(
    tmp_path: Path, store: Store, soon: Callable[[], None]
) -> None:
    many_shards(tmp_path / "digits")
    whole = create_trial(tmp_path / "digits")
    copy_writer(tmp_path / "digits", WRITER, store, state="open", n_files=4)
    trial = create_trial(store.url)
    early = trial.steps()
    assert early == whole.steps()[: len(early)]
    assert 0 < len(early) < len(whole.steps())
    # The commit page says that the writer has closed.  Its files say otherwise.
    assert trial.status == "running"
    assert trial.problems() == []
    copy_writer(tmp_path / "digits", WRITER, store, number=2)
    soon()
    assert trial.steps() == whole.steps()
    assert trial.status == "closed"
    assert trial.problems() == []


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the time pass after which a run looks for manifests."""

    def pass_() -> None:
        monkeypatch.setattr(followed, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(followed, "ENDED_SECONDS", 0.0)

    pass_()
    return pass_


@pytest.mark.parametrize(
    ("state", "age", "told"),
    [
        ("open", 0.0, "running"),
        ("open", 3600.0, "unknown"),
        ("open", -3600.0, "running"),  # A clock that is ahead.
        ("closed", 3600.0, "closed"),
        ("dead", 3600.0, "dead"),
    ],
)
def test_the_manifest_tells_whether_the_training_lives(
    tmp_path: Path, store: Store, state: str, age: float, told: str
) -> None:
    simple_run(tmp_path / "digits")
    copy_writer(tmp_path / "digits", WRITER, store, state=state, age=age)
    assert create_trial(store.url).status == told


def test_a_writer_whose_heart_stands_still_is_stalled(
    tmp_path: Path, store: Store, soon: Callable[[], None]
) -> None:
    simple_run(tmp_path / "digits")
    copy_writer(tmp_path / "digits", WRITER, store, state="open", age=12.0)
    trial = create_trial(store.url)
    assert trial.status == "running"
    copy_writer(tmp_path / "digits", WRITER, store, state="open", number=2)
    soon()
    assert trial.status == "stalled"


def test_an_older_manifest_in_a_stale_listing_changes_nothing(
    tmp_path: Path, store: Store, soon: Callable[[], None]
) -> None:
    many_shards(tmp_path / "digits")
    copy_writer(tmp_path / "digits", WRITER, store, number=2)
    trial = create_trial(store.url)
    steps = trial.steps()
    store.remove(f"m/{WRITER}/0000000002.json")
    copy_writer(tmp_path / "digits", WRITER, store, state="open", n_files=2)
    soon()
    assert trial.steps() == steps
    assert trial.status == "closed"


def test_ranks_and_attempts_are_told_apart(tmp_path: Path, store: Store) -> None:
    for rank in range(2):
        for attempt in range(2):
            with RunBuilder(
                tmp_path / "digits",
                rank=rank,
                world_size=2,
                attempt=f"attempt-number-{attempt}".encode(),
                ordinal=attempt,
            ) as run:
                for step in range(3 - attempt):
                    run.step(step, {"w": np.full(3, 10.0 * attempt + rank)})
    copy_run(tmp_path / "digits", store)
    here, there = create_trial(tmp_path / "digits"), create_trial(store.url)
    assert there.workers() == here.workers()
    assert there.attempts() == here.attempts()
    assert answers(there) == answers(here)


# --- What is not there, or not what it should be ------------------------------


def test_where_there_is_no_run_those_near_it_are_named(
    tmp_path: Path, store: Store
) -> None:
    simple_run(tmp_path / "digits")
    copy_run(tmp_path / "digits", store)
    with pytest.raises(NotARun, match=r"did you mean memory://.*/runs/digits\?") as it:
        create_trial(store.url.replace("digits", "digitz"))
    assert it.value.kind == "missing"
    with pytest.raises(NotARun, match="did you mean"):
        create_trial(store.url.rpartition("/")[0])


def test_runs_are_found_below_a_url(tmp_path: Path, store: Store) -> None:
    simple_run(tmp_path / "digits")
    above = store.url.rpartition("/")[0]
    urls = [f"{above}/{name}" for name in ("a", "deep/b", "digits")]
    for url in urls:
        copy_run(tmp_path / "digits", open_store(url))
    assert find_runs(above) == urls
    assert find_runs(urls[0]) == urls[:1]
    assert find_runs(f"{above}/none") == []


HOSTILE = {
    "another writer": lambda m: replace(m, writer="train-1-1"),
    "another number": lambda m: replace(m, number=7),
    "a path": lambda m: replace(m, blocks=(("../../../etc/passwd", 10),)),
    "too few files": lambda m: replace(m, n_files=m.n_files - 1),
    "too many bytes": lambda m: replace(m, n_bytes=1 << 62),
    "another block": lambda m: replace(m, blocks=(("blocks-0000000099", 10),)),
    "a large block": lambda m: replace(m, blocks=((m.blocks[0][0], 1 << 60),)),
    "a state": lambda m: replace(m, state="resting"),
    "no run": lambda m: replace(m, run={"uuid": "x"}),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_manifest_is_refused(
    tmp_path: Path, store: Store, change: Callable[[Any], Any]
) -> None:
    simple_run(tmp_path / "digits")
    copy_writer(tmp_path / "digits", WRITER, store, change=change)
    with pytest.raises(StorageError):
        create_trial(store.url)


def test_a_replaced_shard_is_an_error_and_never_data(
    tmp_path: Path, store: Store
) -> None:
    many_shards(tmp_path / "digits")
    copy_run(tmp_path / "digits", store)
    here, there = create_trial(tmp_path / "digits"), create_trial(store.url)
    steps = here.tensor("fc.weight").steps()
    name = f"w/{WRITER}/000002.tds"
    content = store.read(name)
    for other in (
        content[:200] + bytes(len(content) - 200),
        content[: len(content) // 2],
        store.read(f"w/{WRITER}/000001.tds").ljust(len(content), b"\0")[: len(content)],
    ):
        store.write(name, other)
        n_errors = 0
        for step in steps:
            expected = here.tensor("fc.weight").value(step)
            try:
                found = there.tensor("fc.weight").value(step)
            except StorageError:
                n_errors += 1
            else:
                np.testing.assert_array_equal(found, expected)
        assert n_errors > 0


def test_a_removed_shard_is_told_by_name(tmp_path: Path, store: Store) -> None:
    many_shards(tmp_path / "digits")
    copy_run(tmp_path / "digits", store)
    trial = create_trial(store.url)
    for number in range(1, 20):
        store.remove(f"w/{WRITER}/{number:06}.tds")
    with pytest.raises(StorageError, match=r"000001\.tds was there") as it:
        trial.tensor("fc.weight").value(0)
    assert it.value.kind == "missing"


def test_after_a_store_that_did_not_answer_every_answer_is_right(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_shards(tmp_path / "digits")
    copy_run(tmp_path / "digits", store)
    expected = answers(create_trial(tmp_path / "digits"))
    trial = create_trial(store.url)
    fail_reads(monkeypatch, 60)
    n_errors = 0
    while n_errors < 20:
        try:
            found = answers_or_raise(trial)
        except StorageError as error:
            assert error.kind == "io"  # noqa: PT017 - whichever question it was
            n_errors += 1
        else:
            assert found == expected
            break
    assert 1 < n_errors < 20


def answers_or_raise(trial: Trial) -> dict[str, Any]:
    trial.tensor("fc.weight").value(0)
    trial.tensor("fc.weight").reduction_value(0, "mean")
    trial.events()
    trial.verify()
    return answers(trial)


def fail_reads(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Let the next *n* reads of shards and indexes fail."""
    monkeypatch.setattr(fetching, "PAUSES", ())
    left = [n]
    read = Store.read_range

    def fail(self: Store, name: str, start: int, stop: int) -> tuple[bytes, str]:
        if name.startswith("w/") and left[0] > 0:
            left[0] -= 1
            msg = "no answer"
            raise StorageError(msg, kind="io")
        return read(self, name, start, stop)

    monkeypatch.setattr(Store, "read_range", fail)
