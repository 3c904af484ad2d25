"""Directories of the runs of one launch."""

from __future__ import annotations

import threading
from pathlib import Path

from tdbg.launch.family import DirectoryFamily, existing
from tdbg.run.directory import create_run


def test_names_that_only_look_alike_are_not_of_the_family(tmp_path: Path) -> None:
    out = tmp_path / "run[1]"
    for name in ("run[1]", "run[1]-2", "run[1]-10", "run[1]-02", "run[1]-x", "run1-2"):
        create_run(tmp_path / name)
    (tmp_path / "run[1]-3").touch()
    names = [Path(each).name for each in existing(out)]
    assert names == ["run[1]", "run[1]-2", "run[1]-10"]


def test_processes_that_claim_at_once_get_directories_of_their_own(
    tmp_path: Path,
) -> None:
    family = DirectoryFamily(tmp_path / "runs" / "run", {})
    claimed: list[Path] = []
    barrier = threading.Barrier(8)

    def claim() -> None:
        barrier.wait()
        claimed.append(family.claim(may_join=True))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(claimed) == sorted(family.member(n) for n in range(1, 9))


def test_only_what_nobody_joined_since_the_launch_is_joined(tmp_path: Path) -> None:
    out = tmp_path / "run"
    create_run(out)
    family = DirectoryFamily(out, existing(out))
    assert family.appeared() == []
    assert family.claim(may_join=False) == family.member(2)
    assert family.claim(may_join=True) == out
    (out / "w" / "train-0-0").mkdir()
    create_run(family.member(2))
    assert family.appeared() == [out, family.member(2)]
    assert family.claim(may_join=True) == family.member(3)


def test_a_directory_that_the_user_made_is_taken(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    family = DirectoryFamily(out, existing(out))
    assert family.claim(may_join=True) == out
