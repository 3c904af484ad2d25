"""How long all rules take over a run of a thousand tensors and a thousand steps.

    python -m benchmarks.rules.engine [--tensors 1000] [--steps 1000] [--rows-only]

The run is written by the writer that a training has, with something for each default
rule to judge, and faults planted in known tensors at known steps; each must be found
there, nothing else by any rule, and no rule may be without a verdict.  With
``--rows-only`` no values, histograms and unit summaries are in it, and that holds for
the rules that need none.  A fresh process judges it, page cache warm and modules
compiled, as an installed package has them.  The figures are
the median and the 95 % interval of the time of judging from an opened trial to the last
finding, the peak of memory beyond what the process had before, and of each rule its
share and how many verdicts it gave.
Baseline: the statistics of all tensors read at once, ``Trial.statistics()``, in chunks
of steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._harness import Report, Table, check, options
from benchmarks._harness.intervals import median_interval
from benchmarks.rules._plan import Plan
from benchmarks.rules._run import build
from tdbg.config.needs import every_need

CHUNK_STEPS = 100
# Rules that give no verdict here. SlowSchedule judges a training that has ended, and
# TreeSettings reads settings that only a tree library writes.  No model is probed.
SILENT = {"SlowSchedule", "TreeSettings"} | {
    "BatchDependence",
    "LabelShift",
    "MaskLeak",
    "NondeterministicEvaluation",
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows-only", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given)))
        return
    if given.quick:
        given.tensors, given.steps = given.tensors // 10, given.steps // 2
    rounds = given.rounds or (2 if given.quick else 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        build(path, given.tensors, given.steps, rows_only=given.rows_only)
        # The first one compiles.
        results = [_fresh(path, given) for _ in range(rounds + 1)][1:]
    report(given, results)


def _fresh(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own measures."""
    sizes = ["--tensors", str(given.tensors), "--steps", str(given.steps)]
    sizes += ["--rows-only"] * given.rows_only
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(path.parent / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--measure", str(path), *sizes],
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    check(done.returncode == 0, f"the process that judges ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Judge the run in this process."""
    n_tensors, n_steps = given.tensors, given.steps
    from tdbg.rules import Engine
    from tdbg.trial import create_trial

    trial = create_trial(path)
    trial.refresh()
    names = trial.tensor_names()
    last = Plan(n_tensors, n_steps).global_step(n_steps)
    n_rows = 0
    started = time.perf_counter()
    for first in range(0, last, CHUNK_STEPS):
        rows = trial.statistics(names, start=first, end=first + CHUNK_STEPS)
        n_rows += int(rows.present.sum())
    baseline = time.perf_counter() - started
    check(n_rows > n_tensors * n_steps, "not every row is there")
    del rows, trial
    trial = create_trial(path)
    trial.refresh()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    started = time.perf_counter()
    processor = time.process_time()
    engine = Engine(trial)
    engine.poll()
    seconds = time.perf_counter() - started
    processor = time.process_time() - processor
    peak = _memory("VmHWM") - before
    sure = of_rows() if given.rows_only else None
    verify(engine.report(), engine.judged(), Plan(n_tensors, n_steps), sure)
    return {
        "rows": n_rows,
        "judged": engine.judged(),
        "seconds": seconds,
        "processor": processor,
        "peak": peak,
        "baseline": baseline,
        "rules": engine.seconds(),
    }


def of_rows() -> set[str]:
    """The default rules that go by rows alone."""
    from tdbg.rules import default_rules

    return {
        rule.name
        for rule in default_rules()
        if not any(
            need.raw or need.histogram or need.unit_summaries
            for need in every_need(rule.needs)
        )
    }


def verify(
    found: Any, judged: dict[str, int], plan: Plan, sure: set[str] | None = None
) -> None:
    """Every fault is found where it is, nothing else, and every rule has judged.

    Of rules that are not *sure* to have what they need (None: all are) only that they
    find no more.
    """
    sure = set(judged) if sure is None else sure
    planted = plan.faults()
    expected = {which: fault for which, fault in planted.items() if which[0] in sure}
    first: dict[tuple[str, str], int] = {}
    for finding in found.findings:
        which = finding.rule, finding.tensor
        at = finding.first_global_step
        first[which] = min(first.get(which, at), at)
    missed, others = expected.keys() - first.keys(), first.keys() - planted.keys()
    check(not missed and not others, f"missed {sorted(missed)}, found {sorted(others)}")
    for which, fault in expected.items():
        since, until = map(plan.global_step, (fault.since, fault.since + fault.within))
        in_time = since <= first[which] <= until
        check(in_time, f"{which} since {since}: found at {first[which]}")
    silent = [
        rule
        for rule, n in judged.items()
        if rule in sure - SILENT - of_time() and not n
    ]
    check(not silent, f"these gave no verdict: {silent}")
    failed = [status for status in found.statuses if status.status.value == "Error"]
    check(not failed, f"a rule failed: {failed}")
    n_judged = found.n_steps + found.n_evaluated
    check(n_judged > plan.n_steps, f"{n_judged} steps were judged")


def of_time() -> set[str]:
    """The default rules that go by a profile, which is not written here."""
    from tdbg.rules import default_rules

    return {
        rule.name
        for rule in default_rules()
        if any(need.profile for need in every_need(rule.needs))
    }


def _memory(what: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(what + ":"))
    return 1024 * int(line.split()[1])


def report(given: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    what = ", rows only" if given.rows_only else ""
    table = Table(
        f"All rules over {given.tensors:,} tensors and {given.steps:,} steps{what}",
        ("what", "median", "95 %"),
    )
    for what, key, factor, unit in (
        ("time of judging", "seconds", 1.0, "s"),
        ("of it processor time", "processor", 1.0, "s"),
        ("reading all statistics (baseline)", "baseline", 1.0, "s"),
        ("peak memory beyond before", "peak", 1e-6, "MB"),
    ):
        values = [factor * result[key] for result in results]
        low, high = median_interval(values)
        middle = sorted(values)[len(values) // 2]
        table.add(f"{what}, {unit}", f"{middle:.3g}", f"{low:.3g}-{high:.3g}")
    table.note = f"{results[0]['rows']:,} rows, and {len(results[0]['rules'])} rules."
    shares = Table("Of it each rule", ("rule", "ms", "verdicts"))
    rules = {
        rule: sorted(1e3 * result["rules"][rule] for result in results)[
            len(results) // 2
        ]
        for rule in results[0]["rules"]
    }
    for rule, milliseconds in sorted(rules.items(), key=lambda item: -item[1]):
        shares.add(rule, f"{milliseconds:.1f}", f"{results[0]['judged'][rule]:,}")
    shares.add("all rules", f"{sum(rules.values()):.1f}", "")
    Report(
        "rules/engine", given, tables=[table, shares], data={"results": results}
    ).save()


if __name__ == "__main__":
    main()
