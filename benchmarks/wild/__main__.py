"""``python -m benchmarks.wild``: run the programs with and without tdbg, and tell.

python -m benchmarks.wild --only digits,vae     programs whose names begin so
python -m benchmarks.wild --seeds 3             their own seed, 1 and 2
python -m benchmarks.wild --healthy             no mistakes
python -m benchmarks.wild report                tables of what was run before
python -m benchmarks.wild list
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._harness.machine import ROOT, machine
from benchmarks.detection.table import write
from benchmarks.wild import table
from benchmarks.wild.corpus import Program, load
from benchmarks.wild.judge import Finding, Outcome, Sick, judge, name_cause

FOLDER = ROOT / "build" / "wild"


def main(arguments: list[str] | None = None) -> None:
    """Run what is asked for, then print tables."""
    given = _options(arguments)
    programs = load([name for name in given.only.split(",") if name])
    if not programs:
        sys.exit(f"--only {given.only}: no program has a name that begins so")
    if given.verb == "list":
        for one in programs:
            kinds = ", ".join(mistake.kind for mistake in one.mistakes)
            print(f"{one.name:28} {one.kind:28} {one.style:28} {kinds}")
        return
    if given.verb == "run":
        for line in _run_all(programs, given):
            print(line, file=sys.stderr, flush=True)
    outcomes = _kept(given.folder, programs)
    if given.json:
        document = {
            "machine": machine(("torch", "tdbg", "lightning", "transformers")),
            "outcomes": [asdict(one) for one in outcomes],
        }
        print(json.dumps(document, indent=1))
    else:
        for each in table.tables(outcomes):
            print(each.text(), end="\n\n")
    if given.write is not None:
        write(given.write, table.tables(outcomes))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wild",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "verb", nargs="?", default="run", choices=["run", "report", "list"]
    )
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--healthy", action="store_true", help="make no mistakes")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of all results")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="page to put the tables into")
    return parser.parse_args(arguments)


def _run_all(programs: list[Program], given: argparse.Namespace) -> Iterator[str]:
    """Run each program and keep its outcome; a line of each, also if it failed."""
    work = [(one, seed or None) for seed in range(given.seeds) for one in programs]

    def run(one: tuple[Program, int | None]) -> str:
        program, seed = one
        name = f"{program.name}-{'own' if seed is None else seed}"
        try:
            outcome = judge(program, given.folder / name, seed, not given.healthy)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return f"{program.name}: FAILED: {error}"
        path = given.folder / f"{name}.json"
        path.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
        return _line(outcome)

    # Processes do the work; threads wait for them.
    with ThreadPoolExecutor(given.jobs) as pool:
        yield from pool.map(run, work)


def _kept(folder: Path, programs: list[Program]) -> list[Outcome]:
    """What was run before, by name and seed, held to what the tables say now."""
    named = {one.name: one for one in programs}
    documents = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    ]
    return [
        _outcome(document, named[document["program"]])
        for document in documents
        if document["program"] in named
    ]


def _outcome(document: dict[str, Any], program: Program) -> Outcome:
    outcome = Outcome(**document)
    outcome.findings = _findings(document["findings"])
    outcome.is_well = program.is_well(outcome.figure)
    mistakes = {one.name: one for one in program.mistakes}
    outcome.sick = [
        Sick(**one) for one in document["sick"] if one["mistake"] in mistakes
    ]
    for one in outcome.sick:
        mistake = mistakes[one.mistake]
        one.findings = _findings(one.findings)
        one.is_harmed = not program.is_well(one.figure)
        one.silent = mistake.silent
        name_cause(one, mistake)
    return outcome


def _findings(documents: list[Any]) -> list[Finding]:
    return [Finding(**one) for one in documents]


def _line(outcome: Outcome) -> str:
    accused = ", ".join(dict.fromkeys(one.rule for one in outcome.findings))
    first = sum(one.place == 1 for one in outcome.sick)
    named = sum(one.place > 0 for one in outcome.sick)
    return (
        f"{outcome.program:26} {outcome.figure}"
        f"  {'well' if outcome.is_well else 'NOT WELL'}"
        f"  {outcome.captured} {', '.join(outcome.lacks)}"
        f"  {outcome.differs or 'unbroken'}"
        f"  {'same weights' if outcome.same_weights else 'OTHER WEIGHTS'}"
        f"  accused: {accused or 'no'}"
        f"  named {named}, first {first}, of {len(outcome.sick)}"
    )


if __name__ == "__main__":
    main()
