"""Run the case study; exits with 1 if something that it claims is not so.

python -m examples.case_study --out runs/case-study
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import tdbg
from examples.case_study import captured, claims, drawing, study
from examples.case_study.train import Options

PAIRS, MATRICES, REPORT = "pairs.png", "confusion.png", "report.md"


def main(arguments: list[str] | None = None) -> int:
    """Train, watch, draw, mend, and check what is claimed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/case-study"))
    parser.add_argument("--steps", type=int, default=Options.n_steps)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    out: Path = given.out
    if out.exists() and any(out.iterdir()):
        parser.error(f"{out} holds something; give another folder with --out")
    out.mkdir(parents=True, exist_ok=True)

    options = Options(n_steps=given.steps)
    print("The training as it is, followed by an engine that may stop it:")
    watched = study.watch_and_stop(out / "0-as-it-is", options)
    for finding in watched.report.findings:
        print(f"  {finding.rule}, step {finding.first_step}: {finding.message}")
    print(f"  stopped after {watched.outcome.n_steps} of {options.n_steps} steps")

    print(f"The same with one fix after the other, {given.seeds} seeds each:")
    variants = study.try_fixes(out, options, given.seeds)
    for variant in variants:
        print(f"  {variant.name}: balanced accuracy {variant.accuracy:.1%}")

    found = claims.confused(variants[0])
    print("Confused in the evaluation, while images were mirrored:")
    for one in found:
        print(f"  {_told(one)}")
    drawing.draw_pairs(claims.by_pair(found), out / PAIRS)
    matrices = {
        variant.name: captured.confusion(
            captured.read(variant.trainings[0].run, tdbg.ModeKeys.EVAL)[-1]
        )
        for variant in variants
    }
    drawing.draw_confusions(matrices, out / MATRICES)

    checked = list(claims.claims(options, watched, variants, found))
    report = _report(watched, variants, found, checked)
    (out / REPORT).write_text(report, encoding="utf-8")
    print("What is claimed, and what was measured:")
    for claim in checked:
        print(f"  [{'ok' if claim.holds else 'NOT SO'}] {claim.text}: {claim.measured}")
    print(f"Pictures and tables: {out / REPORT}")
    return 0 if all(claim.holds for claim in checked) else 1


def _told(one: claims.Confused) -> str:
    pair, nearest = one.pair, len(one.lookalikes)
    mirrored = sum(each.is_mirrored for each in one.lookalikes)
    return (
        f"{pair.label} is taken for {pair.taken_for} ({pair.share:.0%}); of the "
        f"{nearest} nearest training images {mirrored} are mirrored"
    )


def _report(
    watched: study.Watched,
    variants: Sequence[study.Variant],
    found: Sequence[claims.Confused],
    checked: Sequence[claims.Claim],
) -> str:
    digits = range(captured.N_CLASSES)
    lines = ["# Case study", "", "## Findings", ""]
    lines += [f"- as it is: {_line(each)}" for each in watched.report.findings]
    lines += [
        f"- {variant.name}: {_line(each)}"
        for variant in variants
        for each in variant.trainings[0].findings
    ]
    lines += ["", "## Confused pairs", "", f"![pairs]({PAIRS})", ""]
    lines += [f"- {_told(one)}" for one in found]
    lines += ["", f"![confusion]({MATRICES})", "", "## Fix by fix (medians)", ""]
    lines.append("| | balanced accuracy | " + " | ".join(map(str, digits)) + " |")
    lines.append("|---" * (2 + len(digits)) + "|")
    for variant in variants:
        recall = " | ".join(f"{variant.recall(digit):.0%}" for digit in digits)
        lines.append(f"| {variant.name} | {variant.accuracy:.1%} | {recall} |")
    lines += ["", "## Claims", "", "| claim | holds | measured |", "|---|---|---|"]
    for claim in checked:
        holds = "yes" if claim.holds else "**no**"
        lines.append(f"| {claim.text} | {holds} | {claim.measured} |")
    return "\n".join(lines) + "\n"


def _line(finding: tdbg.rules.Finding) -> str:
    where = f"{finding.mode.name.lower()}, steps {finding.first_step}"
    return f"{finding.rule} ({where} to {finding.last_step}): {finding.message}"


if __name__ == "__main__":
    sys.exit(main())
