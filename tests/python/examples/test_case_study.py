"""The case study holds what it claims, in a shortened run; and it can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples.case_study import __main__ as program
from examples.case_study import captured, claims, study
from examples.case_study.train import Options, Outcome

pytestmark = pytest.mark.torch


@pytest.mark.nightly
@pytest.mark.slow
def test_a_short_study_finds_stops_explains_and_mends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    code = program.main([f"--out={out}", "--steps=600", "--seeds=1"])
    printed = capsys.readouterr().out
    assert "[NOT SO]" not in printed, printed
    assert code == 0
    assert printed.count("[ok]") >= 10
    report = (out / program.REPORT).read_text(encoding="utf-8")
    for rule in ("LossNotDecreasing", "ClassImbalance", "Confusion"):
        assert rule in report
    for picture in (program.PAIRS, program.MATRICES):
        assert picture in report
        with Image.open(out / picture) as image:
            assert len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 10


def judged(run: Path, recall: float) -> study.Judged:
    outcome = Outcome(n_steps=1, stopped=None, recall=[recall] * 10)
    return study.Judged(run, outcome, ())


def test_claims_that_are_not_so_are_told(tmp_path: Path) -> None:
    options = Options(n_steps=100)
    report = study.Report(run="", findings=(), statuses=(), n_steps=1, last_step=1)
    outcome = Outcome(n_steps=50, stopped=None, recall=[1.0] * 10)
    watched = study.Watched(tmp_path, outcome, report)
    variants = [study.Variant("", (judged(tmp_path, 0.5),))] * 3
    checked = list(claims.claims(options, watched, variants, ()))
    so = {claim.text for claim in checked if claim.holds}
    # Nothing was found anywhere: that much is true.
    assert so == {
        "with a sane learning rate the loss falls",
        "with all fixes nothing is found",
    }
    watched = replace(watched, outcome=replace(outcome, n_steps=49))
    saved = next(
        claim
        for claim in claims.claims(options, watched, variants, ())
        if "saved" in claim.text
    )
    assert saved.holds
    assert saved.measured == "51 of 100"


def test_what_was_done_to_an_image_is_told_by_its_pixels() -> None:
    flips = captured._flips()
    image = captured.load().train_images[5, 0].numpy()
    assert flips[image.tobytes()] == "as it is"
    assert flips[image[:, ::-1].tobytes()] == "mirrored left to right"
    assert flips[image[::-1].tobytes()] == "mirrored upside down"
    assert flips[image[::-1, ::-1].tobytes()] == "mirrored both ways"


def test_pairs_are_shares_of_a_digit_worst_first() -> None:
    counts = np.diag(np.full(10, 8))
    counts[2, 3], counts[9, 6], counts[9, 4] = 8, 1, 1
    assert captured.pairs(counts, 0.1) == [
        captured.Pair(2, 3, 0.5),
        captured.Pair(9, 4, 0.1),
        captured.Pair(9, 6, 0.1),
    ]
    assert captured.pairs(counts, 0.2) == [captured.Pair(2, 3, 0.5)]
