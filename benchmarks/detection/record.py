"""Runs cases under tdbg, each in a process of its own, and keeps what was recorded.

A training is watched as a user would do it: ``td.watch`` with the default rules and
those that the case asks for.  The run and the outcome of the predicate are kept in
``<cache>/<case>/<seed>-<hash>/``; the hash is of the code of the kit and of the file
of the case, of what the rules need, and of the schedule, so a change of any of these
records again.  A change of tdbg's capture does not: ``--fresh`` is for that.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks.detection.kit.case import Case, case_named, load
from benchmarks.detection.kit.training import Outcome
from benchmarks.detection.verify import run
from tdbg.config.needs import every_need
from tdbg.rules import Rule, default_rules
from tdbg.rules.registry import make, names

__all__ = ["Recording", "asked", "record"]

RUN, OTHER, OUTCOME = "run", "other", "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where a case was recorded with one seed.

    Attributes:
        case: Its name.
        seed: Of the training.
        folder: Holds the run, the other run if there is one, and the outcome.
        trouble: Why there is nothing, or nothing.
    """

    case: str
    seed: int
    folder: Path
    trouble: str = ""

    @property
    def run(self) -> Path:
        """The run to judge."""
        return self.folder / RUN

    def outcome(self) -> Outcome:
        """What the training said of itself."""
        document = json.loads((self.folder / OUTCOME).read_text())
        document["hangs"] = [tuple(hang) for hang in document["hangs"]]
        return Outcome(**document)


def asked(case: Case, folder: Path) -> list[Rule]:
    """The rules that a case asks for beside the default ones, as far as they exist."""
    known = set(names())
    return [
        make(name, **_filled(parameters, folder))
        for name, parameters in case.asks.items()
        if name in known
    ]


def record(
    chosen: Iterable[Case],
    seeds: Iterable[int],
    cache_folder: Path,
    *,
    jobs: int,
    interval: int,
    paths: Sequence[str] = (),
    fresh: bool = False,
    stale: bool = False,
) -> Iterator[Recording]:
    """Record what is not there yet; yield all, in the order of cases and seeds.

    With *stale* a recording by another state of the code is good enough.
    """
    work = []
    for case in chosen:
        for seed in seeds:
            key = f"{seed}-{_hash(case, interval)}"
            folder = cache_folder.resolve() / case.name / key
            if stale:
                there = sorted(folder.parent.glob(f"{seed}-*/{OUTCOME}"))
                folder = there[-1].parent if there else folder
            work.append((case.name, seed, folder, interval, tuple(paths), fresh))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(_record, work)


Work = tuple[str, int, Path, int, tuple[str, ...], bool]


def _record(work: Work) -> Recording:
    name, seed, folder, interval, paths, fresh = work
    recording = Recording(case=name, seed=seed, folder=folder)
    if (folder / OUTCOME).exists() and not fresh:
        return recording
    load(paths)
    case = case_named(name)
    for old in folder.parent.glob(f"{seed}-*"):
        shutil.rmtree(old)
    folder.mkdir(parents=True)
    hooks: list[Any] = []

    def observe(
        which: str,
        model: nn.Module,
        losses: list[nn.Module],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        while hooks:
            hooks.pop().close()
        # The tables are of rules that have all that they need.
        hook = td.watch(
            model,
            losses[0] if losses else None,
            optimizer,
            out=folder / which,
            rules=[*default_rules(), *asked(case, folder)],
            save_config=td.SaveConfig(statistics_interval=interval),
            budget="off",
        )
        for loss in losses[1:]:
            hook.register_loss(loss)
        hooks.append(hook)

    def hooked(framework: str) -> Any:
        face = importlib.import_module(f"tdbg.{framework}")
        hook = face.Hook(
            folder / RUN,
            rules=[*default_rules(), *asked(case, folder)],
            save_config=td.SaveConfig(statistics_interval=interval),
            budget="off",
        )
        hooks.append(hook)
        return hook

    try:
        outcome = run(case, seed, observe, hooked)
    except Exception as error:  # The others are to be recorded all the same.
        shutil.rmtree(folder)
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
        return Recording(case=name, seed=seed, folder=folder, trouble=wrong)
    finally:
        for hook in hooks:
            hook.close()
    half_written = folder / f"{OUTCOME}.tmp"
    half_written.write_text(json.dumps(asdict(outcome)))
    half_written.replace(folder / OUTCOME)
    return recording


def _filled(parameters: Mapping[str, object], folder: Path) -> dict[str, Any]:
    """Parameters with the directory of the other run where it is meant."""

    def fill(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(fill, value))
        if isinstance(value, str):
            return value.replace("{other}", os.fspath(folder / OTHER))
        return value

    return {name: fill(value) for name, value in parameters.items()}


def _hash(case: Case, interval: int) -> str:
    """Changes when another recording would come of it."""
    rules = [*default_rules(), *asked(case, Path("other"))]
    needs = sorted(repr(_sorted(need)) for rule in rules for need in _needs(rule))
    source = Path(case.source).read_text() if case.source else ""
    text = "\n".join([source, _kit(), str(interval), *needs])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _needs(rule: Rule) -> Iterable[Any]:
    return every_need(rule.needs)


def _sorted(need: Any) -> dict[str, object]:
    """A need whose sets have an order."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in asdict(need).items()
    }


@cache
def _kit() -> str:
    files = sorted((Path(__file__).parent / "kit").glob("*.py"))
    return "\n".join(file.read_text() for file in files if file.stem != "case")
