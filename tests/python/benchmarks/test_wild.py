"""Programs that know no tdbg: each can be run, and each mistake be made, as it says.

What tdbg finds in them takes an hour and is what ``python -m benchmarks.wild`` is for.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.wild import __main__ as program
from benchmarks.wild.corpus import KINDS, PROGRAMS, load, replaced

pytestmark = pytest.mark.torch


def test_every_program_has_a_table_and_knows_no_tdbg() -> None:
    programs = load()
    assert [one.path for one in programs] == sorted(PROGRAMS.glob("*.py"))
    for one in programs:
        assert "tdbg" not in one.source(), one.name


def test_every_mistake_and_every_seed_is_one_exact_edit_that_leaves_python() -> None:
    programs = load()
    assert len(programs) >= 40
    for one in programs:
        assert len(one.mistakes) == 3, one.name
        own = one.source()
        assert one.source(seed=91) != own
        for mistake in one.mistakes:
            text = one.source(mistake=mistake)
            assert text != own
            compile(text, one.name, "exec")


def test_an_edit_that_fits_nowhere_or_twice_is_refused() -> None:
    assert replaced("a b", "a", "c") == "c b"
    for text in ("b", "a a"):
        with pytest.raises(ValueError, match="not once"):
            replaced(text, "a", "c")


def test_every_kind_of_mistake_is_made_somewhere() -> None:
    made = {mistake.kind for one in load() for mistake in one.mistakes}
    assert made == set(KINDS)
    for kind in KINDS.values():
        re.compile(kind.cause)
        re.compile(kind.fix)


@pytest.mark.nightly
def test_programs_are_run_with_and_without_tdbg_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "breast_cancer_logistic,scratch_linear_regression"
    program.main(["--only", names, "--folder", str(tmp_path), "--json"])
    first, second = json.loads(capsys.readouterr().out)["outcomes"]

    assert first["captured"] == "fully"
    assert first["is_well"]
    assert first["differs"] == ""
    assert first["same_weights"]
    sick = {one["kind"]: one for one in first["sick"]}
    cleared = sick["gradients not cleared"]
    assert cleared["named_by"] == "GradientsNotCleared"
    assert cleared["place"] == 1
    assert cleared["is_mended"]
    assert sick["wrong sign of the loss"]["is_harmed"]

    # Tensors that belong to no module.
    assert second["captured"] == "not"
    assert second["is_told"]
    assert second["same_weights"]
    assert second["differs"] == ""

    program.main(["report", "--only", names, "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert re.search(r"fully captured\s+1 of 2", printed)
    assert re.search(r"gradients not cleared\s+2\s+1\s+1\s+1", printed)
