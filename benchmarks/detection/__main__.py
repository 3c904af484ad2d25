"""``python -m benchmarks.detection``: verify the corpus, or judge it by the rules.

python -m benchmarks.detection verify --seeds 1         predicates only, no rules
python -m benchmarks.detection --jobs 2                 record, judge, print tables
python -m benchmarks.detection --only raw,dead --json   some cases, as JSON
python -m benchmarks.detection --origin third fourth    of the later collections
python -m benchmarks.detection advice --seeds 1        follow the first advice
python -m benchmarks.detection told --origin sixth      what is read first
python -m benchmarks.detection --set DeadRelu.threshold_layer=80
python -m benchmarks.detection --corpus mine.py         other cases
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks._harness.machine import ROOT
from benchmarks.detection import table
from benchmarks.detection.advice import advice_table, follow_advice, not_mended
from benchmarks.detection.judge import Judged, judge
from benchmarks.detection.kit.case import HALVES, ORIGINS, Case, cases, load
from benchmarks.detection.record import Recording, record
from benchmarks.detection.sweep import sweep
from benchmarks.detection.told import accused_table, told, told_by_class, told_table
from benchmarks.detection.verify import verify

T = TypeVar("T")
CACHE = ROOT / "build" / "detection"


def main() -> None:
    given = options()
    chosen = chosen_cases(given)
    if given.verb == "list":
        for one in chosen:
            print(
                f"{one.name:45} {one.origin:6} {one.half:8} {', '.join(one.named_by)}"
            )
        return
    if given.verb == "verify":
        verify_all(given, chosen)
        return
    if given.verb == "advice":
        try_advice(given, chosen)
        return
    recordings = recorded(given, chosen)
    if given.verb == "record":
        return
    if given.verb == "told":
        read_first(given, recordings)
        return
    if given.verb == "sweep":
        swept = sweep(recordings, given.rules, jobs=given.jobs, paths=given.corpus)
        print(swept.text())
        if given.write is not None:
            table.write(given.write, [swept], "sweep")
        return
    judged = list(
        progress(
            judge(
                recordings,
                changes=changes(given.set),
                only_rules=given.rules,
                jobs=given.jobs,
                paths=given.corpus,
            ),
            len(recordings),
            "judging",
        )
    )
    report(given, judged)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = ["judge", "record", "sweep", "verify", "list", "advice", "told"]
    parser.add_argument("verb", nargs="?", default="judge", choices=verbs)
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument(
        "--origin",
        nargs="+",
        default=["first"],
        choices=[*ORIGINS, "all"],
        help="collections that the cases were written for; default: first",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--interval", type=int, default=10, help="of statistics")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--fresh", action="store_true", help="record all again")
    parser.add_argument(
        "--stale", action="store_true", help="judge what other code has recorded"
    )
    parser.add_argument(
        "--corpus",
        action="append",
        default=[],
        help="file of cases, or a folder of such",
    )
    parser.add_argument("--rules", nargs="*", default=[], help="ask these only")
    parser.add_argument("--set", action="append", default=[], help="Rule.name=value")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="page to put the tables into")
    return parser.parse_args()


def chosen_cases(given: argparse.Namespace) -> list[Case]:
    """The cases that are asked for; of a user's own files all of them."""
    load(given.corpus)
    every = given.corpus or "all" in given.origin
    found = cases(given.only, ORIGINS if every else given.origin)
    return [one for one in found if given.half in (None, one.half)]


def verify_all(given: argparse.Namespace, chosen: list[Case]) -> None:
    """Exit with 1 if a case does not do what it says."""
    troubles = 0
    for verdict in verify(chosen, range(given.seeds), given.jobs, given.corpus):
        print(verdict.line, flush=True)
        troubles += bool(verdict.trouble)
    sys.exit(f"{troubles} in trouble" if troubles else 0)


def try_advice(given: argparse.Namespace, chosen: list[Case]) -> None:
    """Follow the advice that is told first of each sick training, and print."""
    sick = [one for one in chosen if one.is_sick]
    work = follow_advice(sick, range(given.seeds), given.jobs, given.corpus)
    tried = []
    for one in progress(work, len(sick) * given.seeds, "following"):
        tried.append(one)
        print(json.dumps(asdict(one)), file=sys.stderr, flush=True)
    for shown in (advice_table(tried), not_mended(tried)):
        print(shown.text(), end="\n\n")
    if given.write is not None:
        table.write(given.write, [advice_table(tried)], "advice")


def read_first(given: argparse.Namespace, recordings: list[Recording]) -> None:
    """Print how often the cause is on the first line, and on which line of which."""
    work = told(recordings, jobs=given.jobs, paths=given.corpus)
    read = list(progress(work, len(recordings), "reading"))
    tables = [told_table(read), told_by_class(read), accused_table(read)]
    if given.json:
        print(json.dumps([asdict(one) for one in read]))
    else:
        for one in tables:
            print(one.text(), end="\n\n")
    if given.write is not None:
        table.write(given.write, tables, "told")


def recorded(given: argparse.Namespace, chosen: list[Case]) -> list[Recording]:
    """All recordings that are asked for, made now if need be."""
    recordings = progress(
        record(
            chosen,
            range(given.seeds),
            given.cache / f"interval-{given.interval}",
            jobs=given.jobs,
            interval=given.interval,
            paths=given.corpus,
            fresh=given.fresh,
            stale=given.stale,
        ),
        len(chosen) * given.seeds,
        "recording",
    )
    kept = []
    for one in recordings:
        if one.trouble:
            print(f"{one.case} seed {one.seed}: {one.trouble}", file=sys.stderr)
        else:
            kept.append(one)
    return kept


def report(given: argparse.Namespace, judged: list[Judged]) -> None:
    """Print, and write where it is wanted."""
    failures = sorted({error for one in judged for error in one.errors})
    if given.json:
        document = [
            {**asdict(one), "delay": one.delay, "in_time": one.in_time}
            for one in judged
        ]
        print(json.dumps(document, default=list))
    else:
        for one in table.tables(judged):
            print(one.text(), end="\n\n")
        for failure in failures:
            print(f"FAILED: {failure}")
    if given.write is not None:
        table.write(given.write, table.tables(judged))


def changes(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parameters from ``Rule.name=value``."""
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        rule, _, parameter = name.partition(".")
        if not (rule and parameter and value):
            sys.exit(f"--set {setting}: give Rule.parameter=value")
        found.setdefault(rule, {})[parameter] = ast.literal_eval(value)
    return found


def progress(items: Iterator[T], total: int, what: str) -> Iterator[T]:
    """Pass items on, with a bar if somebody looks."""
    console = Console(stderr=True)
    return iter(
        track(
            items,
            what,
            total,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )


if __name__ == "__main__":
    main()
