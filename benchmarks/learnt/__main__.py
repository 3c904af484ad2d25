"""Learn from healthy twins, check the bugs, and check healthy reruns.

    python -m benchmarks.learnt [--only NAME] [--write README]

For each program: one healthy run teaches, the buggy one must break an invariant, and
reruns of the healthy one with other seeds, batch sizes, rates and widths must not.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import tdbg
from benchmarks.learnt.programs import PROGRAMS, RANKED, Program, Settings
from tdbg.rules import Finding, LearntInvariants, Severity

GOOD, BUGGY = Settings(), Settings(seed=1)
RERUNS = (
    Settings(seed=2),
    Settings(seed=3, batch=2 * GOOD.batch),
    Settings(seed=4, rate=2 * GOOD.rate),
    Settings(seed=5, width=2 * GOOD.width),
)
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one program.

    Attributes:
        program: The program.
        n_invariants: How many were learnt from one healthy run.
        found: Findings of the buggy run, the first first; infos are left out.
        n_reruns: How many healthy reruns there were.
        accused: The findings of those.
    """

    program: Program
    n_invariants: int
    found: list[Finding]
    n_reruns: int
    accused: list[Finding]


def judge(program: Program, folder: Path) -> Outcome:
    """Train the program in its variants, learn, and check."""
    reruns = RERUNS[:2] if program.name in RANKED else RERUNS

    def train(name: str, settings: Settings, *, buggy: bool = False) -> str:
        torch.manual_seed(settings.seed)
        program.train(str(folder / name), settings, buggy)
        return str(folder / name)

    out = str(folder / "invariants.json")
    learnt = tdbg.learn(train("good", GOOD), out=out)
    found = check(train("buggy", BUGGY, buggy=True), out)
    healthy = (train(f"rerun-{i}", each) for i, each in enumerate(reruns))
    return Outcome(
        program=program,
        n_invariants=len(learnt.invariants),
        found=found,
        n_reruns=len(reruns),
        accused=[finding for run in healthy for finding in check(run, out)],
    )


def check(run: str, file: str) -> list[Finding]:
    """Return the warnings and errors of the learnt invariants alone."""
    report = tdbg.rules.check(run, [LearntInvariants(file)], record=False)
    (status,) = report.statuses
    if status.status.value == "Error":
        raise RuntimeError(status.message)
    return [each for each in report.findings if each.severity > Severity.INFO]


def line(outcome: Outcome) -> str:
    """Return the line of the table."""
    program, missed = outcome.program, "**not named**"
    named = missed
    if outcome.found:
        first = outcome.found[0]
        said = first.message.partition(". ")[0]
        named = f"{first.severity.label}, step {first.first_step}: "
        named += f"`{first.tensor}`: {said}"
    reruns = f"{len(outcome.accused)} of {outcome.n_reruns}"
    link = f"[{program.name}]({program.source})"
    cells = link, program.mistake, str(outcome.n_invariants), named, reruns
    return f"| {' | '.join(cells)} |"


def table(outcomes: list[Outcome]) -> str:
    """Return the table, and the sums in a sentence."""
    n = sum(each.n_reruns for each in outcomes)
    accused = sum(len(each.accused) for each in outcomes)
    named = sum(bool(each.found) for each in outcomes)
    head = "| report | mistake | invariants | first finding | reruns accused |"
    sums = (
        f"{named} of {len(outcomes)} bugs are named; {n} healthy reruns have "
        f"{accused} warnings or errors."
    )
    return "\n".join([sums, "", head, "|---|---|---|---|---|", *map(line, outcomes)])


def main() -> None:
    """Judge all programs and print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="programs whose names contain it")
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    for program in PROGRAMS.values():
        if given.only not in program.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(judge(program, Path(folder)))
        print(line(outcomes[-1]), flush=True)
        for finding in outcomes[-1].accused:
            print(f"  accused: {finding.tensor}: {finding.message}", flush=True)
    shown = table(outcomes)
    print(f"\n{shown}")
    if given.write is not None:
        page = given.write.read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        given.write.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}")


if __name__ == "__main__":
    main()
