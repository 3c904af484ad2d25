"""Opening what may be a run, or what another tool wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdbg.errors import NotARun
from tdbg.importers import opening, wait_for_run
from tdbg.run.directory import Run, create_run, open_run


def test_a_run_that_appears_between_two_looks_is_waited_for(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looks = 0

    def appears_after_the_look(path: Path) -> Run:
        nonlocal n_looks
        n_looks += 1
        try:
            return open_run(path)
        except NotARun:
            # Its directory first, as a training makes it.
            run_dir.mkdir(mode=0o700) if n_looks == 1 else create_run(path)
            raise

    monkeypatch.setattr(opening, "open_run", appears_after_the_look)
    assert wait_for_run(run_dir, lambda: False) == run_dir
    assert n_looks == 3


def test_what_is_no_run_is_not_waited_for(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "RUN.json").write_text("{}")
    with pytest.raises(NotARun, match="is not the description of a run"):
        wait_for_run(run_dir, lambda: False)
    with pytest.raises(NotARun, match="does not exist"):
        wait_for_run(run_dir.parent / "none", lambda: True)
