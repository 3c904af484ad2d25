"""Directories of the runs of one launch."""

from __future__ import annotations

import threading
from pathlib import Path

from tdbg.launch import family
from tdbg.run.directory import create_run


def test_names_that_only_look_alike_are_not_of_the_family(tmp_path: Path) -> None:
    out = tmp_path / "run[1]"
    for name in ("run[1]", "run[1]-2", "run[1]-10", "run[1]-02", "run[1]-x", "run1-2"):
        create_run(tmp_path / name)
    (tmp_path / "run[1]-3").touch()
    names = [Path(each).name for each in family.existing(out)]
    assert names == ["run[1]", "run[1]-2", "run[1]-10"]


def test_processes_that_claim_at_once_get_directories_of_their_own(
    tmp_path: Path,
) -> None:
    out = tmp_path / "runs" / "run"
    claimed: list[Path] = []
    barrier = threading.Barrier(8)

    def claim() -> None:
        barrier.wait()
        claimed.append(family.claim(out, {}, may_join=True))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(claimed) == sorted(family.member(out, n) for n in range(1, 9))


def test_only_what_nobody_joined_since_the_launch_is_joined(tmp_path: Path) -> None:
    out = tmp_path / "run"
    create_run(out)
    before = family.existing(out)
    assert family.appeared(out, before) == []
    assert family.claim(out, before, may_join=False) == family.member(out, 2)
    assert family.claim(out, before, may_join=True) == out
    (out / "w" / "train-0-0").mkdir()
    create_run(family.member(out, 2))
    assert family.appeared(out, before) == [out, family.member(out, 2)]
    assert family.claim(out, before, may_join=True) == family.member(out, 3)


def test_a_directory_that_the_user_made_is_taken(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    before = family.existing(out)
    assert family.claim(out, before, may_join=True) == out
