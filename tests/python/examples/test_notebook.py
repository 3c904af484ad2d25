"""The example of notebooks: its training, and the pictures that are drawn of it."""

from __future__ import annotations

from pathlib import Path

from examples import notebook
from examples.notebook.pictures import draw
from examples.notebook.training import BRIGHT, train
from tdbg.trial import create_trial

assert notebook.__doc__


def test_the_pictures_are_drawn_of_a_run_in_which_one_batch_is_too_bright(
    tmp_path: Path,
) -> None:
    train(tmp_path / "run", steps=BRIGHT + 20)
    drawn = draw(tmp_path / "run", tmp_path)
    assert len(drawn) == 4
    assert all(each.read_bytes().startswith(b"\x89PNG") for each in drawn)
    loss = create_trial(tmp_path / "run").envelope(
        ["CrossEntropyLoss_output_0"], fields="mean"
    )
    assert loss.edges[loss.high["mean"][0].argmax()] == BRIGHT
    committed = Path(__file__).parents[3] / "docs" / "images"
    assert all((committed / each.name).exists() for each in drawn)
