"""Every face says the same sentence and the same numbers about a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from faces import (
    add_statuses,
    check_faces,
    killed_run,
    said_by,
    save_steps,
    save_thinned_losses,
)
from planted import add_findings, finding
from run_builder import RunBuilder
from tdbg.run.findings import Severity
from tdbg.trial import create_trial
from tdbg.view import view_of

RUNS = [
    *("healthy", "sick", "noted", "failed", "damaged", "killed", "empty"),
    *("live", "ranks", "unjudged", "thinned"),
]
BROKEN_RULE = """
from dataclasses import dataclass
from tdbg.config import Needs
from tdbg.rules import Rule

@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Rule):
    needs = Needs(collections=frozenset({"weights"}))

    def evaluate(self, window):
        raise ValueError("no")
"""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("faces")
    paths = {name: folder / name for name in RUNS}
    with ExitStack() as open_runs:
        for name in ("healthy", "sick", "noted", "failed", "damaged", "unjudged"):
            with RunBuilder(paths[name]) as run:
                save_steps(run)
        with RunBuilder(paths["thinned"]) as run:
            save_thinned_losses(run)
        for rank in range(2):
            with RunBuilder(paths["ranks"], rank=rank, world_size=3) as run:
                save_steps(run)
        (shard,) = paths["damaged"].rglob("*.tds")
        next(paths["damaged"].rglob("*.tdi")).unlink()
        os.truncate(shard, shard.stat().st_size // 2)
        killed_run(paths["killed"])
        with RunBuilder(paths["empty"]):
            pass
        live = open_runs.enter_context(RunBuilder(paths["live"]))
        save_steps(live)
        live.flush()
        sick = finding("ExplodingTensor", "fc.weight", 3, Severity.ERROR)
        slight = finding("LossSpike", "loss_output_0", 5, Severity.WARNING)
        note = finding("TrainingSetup", "model", 0, Severity.INFO)
        add_findings(paths["sick"], sick, slight, note)
        add_findings(paths["noted"], note)
        add_statuses(paths["failed"], A="", B="ValueError: no")
        for name in set(RUNS) - {"failed", "unjudged", "empty"}:
            add_statuses(paths[name], A="", LossSpike="")
        yield paths


@pytest.mark.parametrize("name", RUNS)
def test_the_faces_agree_on_a_run(runs: dict[str, Path], name: str) -> None:
    check_faces(runs[name])


def test_each_run_is_told_as_it_is(runs: dict[str, Path]) -> None:
    said = {name: view_of(create_trial(path)).verdict for name, path in runs.items()}
    told = {name: verdict.sentence for name, verdict in said.items()}
    assert told["healthy"] == "Trained for 60 steps. 2 rules found nothing wrong."
    assert "2 things are wrong, the worst: ExplodingTensor in" in told["sick"]
    assert "Nothing is wrong; 1 note: TrainingSetup in model." in told["noted"]
    assert "1 rule failed and judged nothing: B." in told["failed"]
    assert told["killed"].startswith("Killed after 60 steps.")
    assert told["live"].startswith("Training, 60 steps so far.")
    assert "Data is missing: rank 2 of 3 wrote nothing." in told["ranks"]
    assert "Data is missing" in told["damaged"]
    assert told["empty"] == "Nothing was recorded."
    green = {name for name, verdict in said.items() if verdict.tone == "ok"}
    assert green == {"healthy", "live", "thinned"}


@pytest.mark.parametrize("verb", ["check", "watch"])
def test_who_judges_says_the_sentence_that_the_run_then_has(
    tmp_path: Path, verb: str
) -> None:
    path, rule = tmp_path / "run", tmp_path / "broken.py"
    rule.write_text(BROKEN_RULE)
    with RunBuilder(path) as run:
        save_steps(run)
    for names, exit_code in ((["AllZero"], 0), (["AllZero", f"{rule}:Broken"], 4)):
        options = [word for name in names for word in ("--rule", name)]
        code, text = said_by(verb, path, *options)
        verdict = view_of(create_trial(path)).verdict
        assert code == exit_code, text
        assert verdict.sentence in text
        code, text = said_by(verb, path, *options, "--json")
        assert json.dumps(verdict.sentence) in text


def test_a_notebook_shows_a_run_where_only_tdbg_was_imported(
    runs: dict[str, Path],
) -> None:
    program = (
        "import sys, tdbg; trial = tdbg.create_trial(sys.argv[1])\n"
        "assert not any(m.startswith('tdbg.drawing') for m in sys.modules)\n"
        "assert '<svg' in trial._repr_html_()\n"
        "assert 'fc.weight' in trial.tensor('fc.weight')._repr_html_()"
    )
    subprocess.run([sys.executable, "-c", program, str(runs["healthy"])], check=True)


BETWEEN_RULE = """
from dataclasses import dataclass
from tdbg.config import Needs
from tdbg.rules import Description, Rule, Severity

@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Rule):
    low: float
    high: float
    severity: str
    needs = Needs(collections=frozenset({"weights"}))

    def evaluate(self, window):
        for table in window.tables():
            norm = table["l2"]
            yield table.judge_bad(
                (norm > self.low) & (norm < self.high),
                Severity[self.severity.upper()],
                lambda i, j: Description(message="measured", advice="look"),
            )
"""


@pytest.mark.parametrize(
    ("severity", "high", "code", "words"),
    [
        ("info", 1e9, 0, "Nothing is wrong; 1 note: Between in fc.weight."),
        ("warning", 1e9, 1, "One thing is wrong: Between in fc.weight."),
        ("warning", 60, 1, "1 problem occurred and recovered: Between in fc.weight;"),
        ("warning", 20, 0, "1 rule found nothing wrong."),
    ],
)
def test_the_exit_code_of_check_and_watch_agrees_with_the_sentence(
    tmp_path: Path, severity: str, high: float, code: int, words: str
) -> None:
    path, file = tmp_path / "run", tmp_path / "between.py"
    file.write_text(BETWEEN_RULE)
    with RunBuilder(path) as run:
        save_steps(run)
    rule = f"{file}:Between(low=20, high={high}, severity='{severity}')"
    for verb in ("check", "watch"):
        found, text = said_by(verb, path, "--rule", rule)
        assert (found, words in text) == (code, True), text
    verdict = view_of(create_trial(path)).verdict
    # Green is only what was never wrong, so that it never comes with exit code 1.
    assert (verdict.tone == "ok") == (code == 0 and severity != "info")
    assert bool(verdict.wrong or verdict.recovered) == (code == 1)
    found, text = said_by("check", f"{tmp_path}/ru*", "--rule", rule, "--jobs", "1")
    assert found == code, text
