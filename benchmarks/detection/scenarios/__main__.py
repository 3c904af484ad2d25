"""``python -m benchmarks.detection.scenarios``: what the rules about time name.

python -m benchmarks.detection.scenarios                     all, and their twins
python -m benchmarks.detection.scenarios --only loader,one   names that begin so
python -m benchmarks.detection.scenarios --short             nothing longer than 60 s
python -m benchmarks.detection.scenarios advice              is the promised gain met?
python -m benchmarks.detection.scenarios corpus              false alarms elsewhere
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from benchmarks._harness.machine import ROOT
from benchmarks._harness.tables import Table
from benchmarks.detection.scenarios import corpus, table
from benchmarks.detection.scenarios.kit import Scenario, scenarios
from benchmarks.detection.scenarios.stage import (
    OUTCOME,
    Performance,
    Recorded,
    judge,
    perform,
)

__all__ = ["main"]

T = TypeVar("T")
Result = TypeVar("Result")
FOLDER = ROOT / "build" / "scenarios"
WORKERS = re.compile(r"num_workers=(\d+)")


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for, and print its tables."""
    given = _options(arguments)
    names = tuple(given.only.split(","))
    if given.verb == "corpus":
        files = corpus.scripts(given.scripts, names)
        return _shown(*corpus.tables(files, given.seconds, given.jobs))
    chosen = [
        each
        for each in scenarios().values()
        if each.name.startswith(names) and not (given.short and each.is_long)
    ]
    if not chosen:
        sys.exit(f"--only {given.only}: no scenario has a name that begins so")
    if given.verb == "list":
        for each in chosen:
            print(f"{each.name:26} {', '.join(each.named_by):22} {each.text}")
        return 0
    if given.verb == "advice":
        return _advice([each for each in chosen if each.mends], given)
    return _detection(chosen, given)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection.scenarios",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = ["run", "judge", "advice", "corpus", "list"]
    parser.add_argument("verb", nargs="?", default="run", choices=verbs)
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--short", action="store_true", help="none that lasts minutes")
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at once")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--scripts", type=Path, nargs="*", default=[], help="healthy ones, or folders"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each script")
    return parser.parse_args(arguments)


def _detection(chosen: Sequence[Scenario], given: argparse.Namespace) -> int:
    """Perform all with their twins (or judge what is there), and print."""
    work = [
        (each, mode)
        for each in sorted(chosen, key=lambda each: -each.seconds)
        for mode in (("sick", "twin") if each.named_by else ("healthy",))
    ]

    def one(what: tuple[Scenario, str]) -> Performance:
        scenario, mode = what
        folder = given.folder / f"{scenario.name}-{mode}"
        recorded = (
            _kept(scenario, mode, folder) if given.verb == "judge" else None
        ) or _performed(scenario, mode, folder)
        return _judged(recorded)

    found = _in_parallel(one, work, given.jobs, lambda what: what[0])
    return _shown(table.by_scenario(found), table.totals(found), table.alarms(found))


def _performed(scenario: Scenario, mode: str, folder: Path) -> Recorded:
    """Perform it, again if the machine was too busy for its predicate."""
    recorded = perform(scenario, mode, folder)
    if not recorded.trouble and not recorded.is_as_said:
        recorded = perform(scenario, mode, folder)
    return recorded


def _kept(scenario: Scenario, mode: str, folder: Path) -> Recorded | None:
    return Recorded.of(scenario, mode, folder) if (folder / OUTCOME).exists() else None


def _judged(recorded: Recorded) -> Performance:
    if recorded.trouble:
        return Performance(
            recorded=recorded, roots=(), symptoms=(), infos=(), seconds=None
        )
    return judge(recorded)


def _advice(chosen: Sequence[Scenario], given: argparse.Namespace) -> int:
    """Perform each with its fault, do as the first finding says, and compare."""

    def one(scenario: Scenario) -> table.Promise | None:
        folder = given.folder / f"{scenario.name}-sick"
        recorded = _kept(scenario, "sick", folder) or perform(scenario, "sick", folder)
        told = _judged(recorded)
        if not told.naming:
            return None
        finding = told.naming[0]
        workers = WORKERS.search(finding.advice)
        mended = perform(
            scenario,
            "mended",
            given.folder / f"{scenario.name}-mended",
            workers=int(workers[1]) if workers else None,
        )
        return table.Promise(finding, recorded, mended)

    told = _in_parallel(one, chosen, given.jobs, lambda each: each)
    kept = [each for each in told if each is not None]
    return _shown(table.promises(kept))


def _in_parallel(
    function: Callable[[T], Result],
    items: Sequence[T],
    jobs: int,
    scenario_of: Callable[[T], Scenario],
) -> list[Result]:
    """Return what the function gives for each item; some must have no other beside."""
    done: dict[int, Result] = {}
    for alone in (False, True):
        chosen = [i for i, e in enumerate(items) if scenario_of(e).alone is alone]
        with ThreadPoolExecutor(1 if alone else jobs) as pool:
            for i, result in zip(
                chosen, pool.map(lambda i: function(items[i]), chosen), strict=True
            ):
                done[i] = result
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [done[i] for i in range(len(items))]


def _shown(*tables: Table) -> int:
    for each in tables:
        print(each.text(), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
