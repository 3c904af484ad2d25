"""``tdbg diff``: where two runs part, and what else differs in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import click
from rich.console import Console

from tdbg.cli import accounts, options
from tdbg.cli.output import EXIT_FOUND, console, emit_json, number, plain, table
from tdbg.compare import (
    BY,
    MissingName,
    RunDiff,
    TensorDifference,
    Value,
    diff,
)
from tdbg.config.quantities import plural
from tdbg.trial import create_trial

__all__ = ["command"]

MOST_ROWS, MOST_NAMES = 12, 5
RUNS = ("first run", "second run")


@click.command("diff")
@click.argument("first", type=options.DIRECTORY, metavar="A")
@click.argument("second", type=options.DIRECTORY, metavar="B")
@click.option(
    "--noise",
    multiple=True,
    type=options.DIRECTORY,
    metavar="RUN",
    help="A run that should be the same as A, or, given twice, two that should be the "
    "same as each other: a difference is what is four times further apart.",
)
@click.option(
    "--map",
    "name_map",
    multiple=True,
    metavar="RULE|FILE",
    help="Turn names of A into those of B: 'EXPRESSION -> REPLACEMENT', or a file with "
    "one rule a line; repeatable.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Ignore relative differences up to this one.  Default: as far as rounding "
    "takes runs apart.",
)
@click.option(
    "--by",
    type=click.Choice(BY),
    default=BY[0],
    show_default=True,
    help="Match steps by their place in the training, by their global number, or by "
    "their number in their mode.",
)
@click.option(
    "--mode",
    metavar="MODE[:MODE]",
    help="Only steps of this mode; EVAL:PREDICT compares two modes.",
)
@options.regex
@click.option("--all", "shows_all", is_flag=True, help="List everything that differs.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    first: str,
    second: str,
    noise: tuple[str, ...],
    name_map: tuple[str, ...],
    tolerance: float | None,
    by: str,
    mode: str | None,
    regex: tuple[str, ...],
    shows_all: bool,
    as_json: bool,
) -> None:
    """Show where the runs A and B part: the first tensor in the order of execution.

    tdbg compares values where both runs have them, and statistics elsewhere, at all
    steps that both recorded.  It says how far beyond rounding the first difference is,
    and what else differs.  The exit code is 1 if tensors differ.
    """
    trials = create_trial(first), create_trial(second)
    found = diff(
        *trials,
        noise=noise or None,
        name_map=name_map,
        tolerance=tolerance,
        by=by,
        mode=mode,
        regex=regex,
    )
    if as_json:
        emit_json(found.to_json())
    else:
        _print(found, console(), None if shows_all else MOST_ROWS)
    if not found.is_same:
        ctx.exit(EXIT_FOUND)
    accounts.exit_if_unread(ctx, [each for t in trials for each in t.problems()])


def _print(found: RunDiff, out: Console, most: int | None) -> None:
    out.print(plain(_headline(found)), style="bold")
    if found.first is not None:
        _print_first(found.first, out)
    _print_missing(found.missing, out, most)
    _print_others(found, out, most)
    _print_settings(found, out, most)
    for line in _notes(found):
        out.print(plain(line))


def _headline(found: RunDiff) -> str:
    first, names = found.first, " and ".join(found.runs)
    if first is not None:
        where = first.module or first.name
        layer = f" ({first.module_class})" if first.module_class else ""
        return f"{names} part at {where}{layer}, step {first.step:,} ({first.mode})"
    if found.missing:
        n = plural(len(found.missing), "name")
        return f"{names} differ: {n} of parameters and gradients in one run alone"
    return f"{names}: no difference"


def _print_first(first: TensorDifference, out: Console) -> None:
    beyond = (
        f"{number(first.deviation)} apart, {number(first.excess)} times the tolerance "
        f"of {number(first.tolerance)}"
        if first.deviation < float("inf") and first.tolerance
        else "no rounding explains it"
    )
    name = first.name
    if first.other_name != name:
        name = f"{name} (in the second run {first.other_name})"
    note = f"; {first.note}" if first.note else ""
    out.print(plain(f"{first.role} {name}, compared by {first.by}: {beyond}{note}"))
    if first.evidence:
        rows = [(e.what, number(e.first), number(e.second)) for e in first.evidence]
        out.print(table(("", *RUNS), rows, right=RUNS))


def _print_missing(
    missing: Sequence[MissingName], out: Console, most: int | None
) -> None:
    if not missing:
        return
    rows = [(each.name, RUNS[each.run], each.hint) for each in missing[:most]]
    out.print(table(("missing in the other run", "is in", "renamed?"), rows))
    _print_more(len(missing) - len(rows), out)


def _print_others(found: RunDiff, out: Console, most: int | None) -> None:
    others = found.differences[1:]
    if not others:
        return
    rows = [
        (d.name, d.role, f"{d.step:,}", d.by, number(d.deviation), number(d.excess))
        for d in others[:most]
    ]
    columns = ("then", "role", "step", "by", "apart", "times the tolerance")
    out.print(table(columns, rows, right=("step", "apart", "times the tolerance")))
    _print_more(len(others) - len(rows), out)


def _print_settings(found: RunDiff, out: Console, most: int | None) -> None:
    if not found.settings:
        return
    rows = [
        (name, *(_words(value) for value in values))
        for name, values in found.settings[:most]
    ]
    out.print(table(("set differently", *RUNS), rows))
    _print_more(len(found.settings) - len(rows), out)


def _print_more(n: int, out: Console) -> None:
    if n > 0:
        out.print(f"and {n:,} more; --all lists them")


def _words(value: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return f"{number(value[0])} to {number(value[1])}"
    return value if isinstance(value, str) else number(value)


def _notes(found: RunDiff) -> Iterator[str]:
    by_values = found.n_by_values
    yield (
        f"compared {plural(found.n_names, 'tensor')} at "
        f"{plural(found.n_steps, 'step')} that both recorded ({_steps(found)}): "
        f"{by_values:,} by values, the others by statistics, which show no exchange of "
        "elements"
        if by_values < found.n_names
        else f"compared {plural(found.n_names, 'tensor')} by values at "
        f"{plural(found.n_steps, 'step')} that both recorded ({_steps(found)})"
    )
    yield _tolerance(found)
    if not found.has_samples:
        yield (
            "inputs, outputs and losses not compared: only some ranks of one run have "
            "recorded theirs; record with include_workers='all'"
        )
    if found.caveat:
        yield found.caveat
    for one, other, n in found.dtypes:
        yield f"{one} in the first run, {other} in the second: {plural(n, 'tensor')}"
    for how, n in Counter(how for _, how in found.layouts).items():
        yield f"{how} in the second run, and compared so: {plural(n, 'tensor')}"
    if found.without_effect:
        yield (
            "differ after an update, without an effect on what is computed of them: "
            + _some(found.without_effect)
        )
    for run in (0, 1):
        names = [each.name for each in found.not_compared if each.run == run]
        if names:
            yield f"only in the {RUNS[run]}, not compared: {_some(names)}"


def _steps(found: RunDiff) -> str:
    told = []
    for each in found.steps:
        mode = each.modes[0] if len({*each.modes}) == 1 else " with ".join(each.modes)
        told.append(
            f"{mode}: {each.n:,} of {each.recorded[0]:,} and {each.recorded[1]:,}"
        )
    return "; ".join(told)


def _tolerance(found: RunDiff) -> str:
    if found.tolerance == "given":
        return "tolerance: as given"
    if found.tolerance == "noise":
        return "tolerance: four times the noise between the runs of --noise"
    return (
        f"tolerance: rounding to {number(found.roundoff)}, sums of "
        f"{found.reduction:,}, {plural(found.layers, 'layer')}; "
        "twice that after each update"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
