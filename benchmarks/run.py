"""Runs benchmarks, each in its environment: what ``make bench`` calls.

    python -m benchmarks.run                            most of them, quickly
    python -m benchmarks.run --only overhead/resnet,writer
    python -m benchmarks.run --full                     all rounds: hours
    python -m benchmarks.run --list

Beside what ``overhead/matrix.py`` lists, every program ``benchmarks/FOLDER/NAME.py``
is a benchmark, FOLDER/NAME.  It runs in the environment that its line
``ENVIRONMENT = "..."`` names, else in ``tdbg``; it is given ``--quick`` if it takes
``options()`` of the harness.  Environments are made, or brought up to date with this
checkout, first.  Needs no package; any Python from 3.11 will do.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._harness.environments import run_module
from benchmarks._harness.machine import ROOT
from benchmarks.environments.create import create
from benchmarks.overhead import matrix

FOLDER = Path(__file__).parent
#: Folders without programs of their own to find.
OTHERS = {"_harness", "detection", "environments", "gpu", "micro", "overhead"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--full", action="store_true", help="all rounds")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--minutes", type=float, help="then nothing more is begun")
    parser.add_argument("--no-create", action="store_true", help="environments as is")
    parser.add_argument("--seconds", type=float, help="at most, of each slowdown")
    given = parser.parse_args()
    beginnings = tuple(filter(None, re.split(r"[,\s]+", given.only)))
    every = list(programs(given.full))
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name, *_ in every):
            sys.exit(f"no benchmark begins with {beginning!r}; --list has the names")
    chosen = select(every, beginnings)
    if not given.full and not beginnings and not given.list:
        chosen = [program for program in chosen if matrix.in_quick(program[0])]
    if given.list:
        print("\n".join(f"{one[0]:45} {one[1]}" for one in chosen))
        return
    if not given.no_create:
        for where in dict.fromkeys(one[1] for one in chosen):
            create(where)
    failed, done, started = [], set(), time.monotonic()
    for name, where, module, arguments in chosen:
        if given.minutes and time.monotonic() - started > 60 * given.minutes:
            print(f"== time is up before {name}", flush=True)
            break
        what = (where, module, *arguments)
        if what in done:  # A part of two sets.
            continue
        done.add(what)
        more = [] if given.full else quick(module)
        if given.seconds and module.startswith("benchmarks.overhead."):
            more = [*more, f"--seconds={given.seconds}"]
        if run_module(where, module, [*arguments, *more]):
            failed.append(name)
    minutes = (time.monotonic() - started) / 60
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)} ({minutes:.0f} minutes)")
    print(f"{len(done)} benchmarks in {minutes:.0f} minutes")


def select(
    all_programs: list[matrix.Program], beginnings: tuple[str, ...]
) -> list[matrix.Program]:
    """Those whose names begin so, in that order; a whole name is itself alone."""
    if not beginnings:
        return all_programs
    names = {one[0] for one in all_programs}
    chosen: dict[str, matrix.Program] = {}
    for beginning in beginnings:
        for one in all_programs:
            whole = beginning in names
            if one[0] == beginning or (not whole and one[0].startswith(beginning)):
                chosen.setdefault(one[0], one)
    return list(chosen.values())


def programs(full: bool) -> Iterator[matrix.Program]:
    """All, in the order in which they run."""
    yield from matrix.slowdown()
    yield from matrix.save_interval(full)
    yield from found()
    yield from matrix.growth()


def found() -> Iterator[matrix.Program]:
    """Programs of other folders."""
    for path in sorted(FOLDER.glob("*/*.py")):
        if path.parent.name in OTHERS or path.name.startswith("_"):
            continue
        where = re.search(r'^ENVIRONMENT = "(\w+)"', source(path), re.MULTILINE)
        name = f"{path.parent.name}/{path.stem}"
        module = f"benchmarks.{path.parent.name}.{path.stem}"
        yield (name, where[1] if where else "tdbg", module, [])


def quick(module: str) -> list[str]:
    """The argument for few rounds, if the program knows it."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    takes = re.search(r"\b(options|parser)\(__doc__\)", source(path))
    return ["--quick"] if takes else []


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
