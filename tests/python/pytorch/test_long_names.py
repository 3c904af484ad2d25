"""Names of any length and content cost nobody a tensor, and no run its readability."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from run_builder import RunBuilder
from tdbg.capture.events import MAX_EVENT_BYTES
from tdbg.cli import _tdbg
from tdbg.config import Role
from tdbg.errors import TensorUnavailable
from tdbg.pytorch import Hook, SaveConfig, create_trial

pytestmark = pytest.mark.torch
ALWAYS = SaveConfig(save_interval=1, statistics_interval=1)
MODULES = ["a" * 5000, "a" * 5001, "b" * 70_000, "c\0d", "e\nf", "x\ud83d", "ok"]
MODULES += ["\N{LATIN SMALL LETTER U WITH DIAERESIS}\U0001f600\u202e", "\u00fc" * 3000]
GIVEN = ["", "s" * 70_000, "t\0", "u\n"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in MODULES:
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in MODULES:
            x = getattr(self, name)(x)
        return x


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names") / "run"


@pytest.fixture(scope="module")
def texts(run: Path) -> list[str]:
    """What is logged by a training whose names are of every kind."""
    found: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    log, heard = logging.getLogger("tdbg"), Heard()
    log.addHandler(heard)
    torch.manual_seed(0)
    model = Model()
    hook = Hook(
        run,
        include_collections=["weights", "gradients", "outputs"],
        save_config=ALWAYS,
        min_free_bytes=0,
    )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    for name in GIVEN:
        hook.save_tensor(name, torch.full((2,), 3.0))
        hook.save_scalar(f"of {name}", 2.0)
    assert hook.close()
    counters = hook.counters()
    assert counters["internal_errors"] == counters["refused_tensors"] == 0
    log.removeHandler(heard)
    return found


def test_every_tensor_is_captured_whatever_its_name_is(
    run: Path, texts: list[str]
) -> None:
    assert texts
    trial = create_trial(run)
    assert trial.problems() == []
    assert not trial.lost_records()
    for name in MODULES:
        shown = name.replace("\ud83d", "\\ud83d")
        for tensor in (f"{shown}.weight", f"gradient/{shown}.bias"):
            assert trial.tensor(tensor).stats(1).count in (3, 9)
        assert trial.tensor(f"{shown}_output_0").steps() == [0, 1]
    for name in GIVEN:
        assert trial.tensor(name).value(1).tolist() == [3.0, 3.0]
        assert trial.has_tensor(f"scalar/of {name}")


def test_one_warning_says_what_becomes_of_long_names(texts: list[str]) -> None:
    (text,) = texts
    assert "a name is longer than 4096 bytes (aaaaa" in text
    assert len(text) < 400


def test_a_long_name_is_found_by_itself_and_as_it_is_stored(
    run: Path, texts: list[str]
) -> None:
    assert texts
    trial = create_trial(run)
    names = trial.tensor_names()
    assert max(len(name.encode()) for name in names) == 4096
    long = "b" * 70_000 + ".weight"
    digest = hashlib.sha256(long.encode()).hexdigest()
    (stored,) = (name for name in names if name.endswith(f"#{digest}"))
    assert trial.tensor(long).name == trial.tensor(stored).name == stored
    table = trial.statistics([long])
    assert table.present.all()
    with pytest.raises(TensorUnavailable) as raised:
        trial.tensor("z" * 70_000)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("verb", ["ls", "show", "check", "fsck"])
def test_every_verb_reads_such_a_run(run: Path, texts: list[str], verb: str) -> None:
    assert texts
    done = CliRunner().invoke(_tdbg, [verb, str(run)])
    assert done.exit_code in (0, 1), done.output
    assert "\0" not in done.output


@pytest.mark.parametrize(
    "aliases",
    [["a" * 5000], ["a" * 70_000], [f"{i}" * 3000 for i in range(60)], ["x"] * 70_000],
)
def test_a_tensor_with_long_or_many_aliases_is_stored(
    run_dir: Path, aliases: list[str]
) -> None:
    ones = np.ones(3, np.float32)
    with RunBuilder(run_dir) as builder:
        builder.save(0, "w", ones, role=Role.WEIGHT, aliases=aliases)
        builder.end_step(0)
    trial = create_trial(run_dir)
    assert trial.tensor("w").stats(0).count == 3
    assert trial.tensor(aliases[0]).name == "w"
    assert trial.problems() == []
    assert bool(trial.step_table()["lossless"].all())


def test_an_event_that_is_too_large_is_counted_and_logged(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Hook(run_dir, min_free_bytes=0)
    content: dict[str, Any] = {"what": "x" * MAX_EVENT_BYTES}
    hook._session.write_event(3, content)
    hook.close()
    assert hook.counters()["offered"] > hook.counters()["written"]
    assert create_trial(run_dir).lost_records().reasons == {"refused": 1}
    assert "tdbg leaves out an event (what)" in caplog.text
