"""``tdbg rules``: which rules there are, what they need and what that costs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, n_bytes, plain
from tdbg.config.needs import Needs, every_need
from tdbg.config.quantities import conjoin
from tdbg.config.schedules import STATISTICS_INTERVAL
from tdbg.errors import ConfigurationError
from tdbg.rules import Rule, get, is_in_file, names, parameters_of, registry

__all__ = ["command"]

# docs/overhead.md, "What costs what".
COSTS = (
    "A row of statistics costs one read of the tensor (0.05 ms a MB, half a "
    "microsecond if it is small), counts of units one row more, a histogram two rows "
    "more, a raw value one copy (0.06 ms a MB). Rules that need the same share it. "
    "tdbg docs overhead has the figures."
)


@click.command("rules")
@click.argument("rules", nargs=-1, metavar="[NAME]...")
@options.as_json
def command(rules: tuple[str, ...], as_json: bool) -> None:
    """List all rules, or describe those that you name (NAME or FILE.py:CLASS)."""
    described = [_describe(name, named=bool(rules)) for name in rules or names()]
    if as_json:
        emit_json({"rules": described, "cost": COSTS})
        return
    out = console()
    if rules:
        for rule in described:
            _print_rule(rule)
    else:
        rows = [
            (
                r["rule"],
                r["severities"][-1] if r["severities"] else "-",
                r["error"] or r["meaning"].removeprefix("Report "),
            )
            for r in described
        ]
        out.print(_table(("rule", "at worst", "finds"), rows, wraps=False))
        out.print(
            plain("tdbg rules NAME says what it captures, what that costs, and more.")
        )


def _describe(name: str, *, named: bool) -> dict[str, Any]:
    try:
        rule = get(name)
    except ConfigurationError as error:
        # A rule that cannot be imported must not hide the others.
        if named:
            raise
        return {**_empty(name), "error": str(error)}
    document = inspect.getdoc(rule) or ""
    meanings = _meanings(rule)
    return {
        **_empty(rule.__name__),
        "meaning": " ".join(document.partition("\n\n")[0].split()),
        "severities": [severity.label for severity in rule.severities],
        "by_default": registry.is_default(name),
        "source": name if is_in_file(name) else rule.__module__,
        "needs": [need.to_json() for need in _needs(rule)],
        "captures": [captures(need) for need in _needs(rule)],
        "parameters": [
            {
                "name": field.name,
                "default": _plain(field.default),
                "required": field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING,
                "meaning": meanings.get(field.name, ""),
            }
            for field in parameters_of(rule)
        ],
    }


def _empty(name: str) -> dict[str, Any]:
    return {
        "rule": name,
        "meaning": "",
        "severities": [],
        "by_default": False,
        "source": "",
        "needs": [],
        "captures": [],
        "parameters": [],
        "error": "",
    }


def _needs(rule: type[Rule]) -> Sequence[Needs]:
    """The needs of a rule with default parameters, as far as it has defaults."""
    try:
        return every_need(rule().needs)
    except (ConfigurationError, TypeError):
        pass
    # A parameter has no default: set the others without constructing the rule.
    given: Any = rule
    blank = object.__new__(rule)
    for field in dataclasses.fields(given):
        if field.default is not dataclasses.MISSING:
            object.__setattr__(blank, field.name, field.default)
    try:
        return every_need(blank.needs)
    except Exception:  # User code: a rule may raise anything.
        return ()


def captures(need: Needs) -> str:
    """What a hook captures for a need, and when, in words.

    Example:
        >>> captures(Needs(collections=frozenset({"labels"}), raw=True, interval=5))
        'rows and raw values (to 1.0 MB) of labels every 5 steps'
    """
    if not need.collections:
        return "nothing"
    asked = {
        "rows": need.statistics,
        "counts of units": need.unit_summaries,
        "histograms": need.histogram,
        f"raw values (to {n_bytes(need.raw_limit)})": need.raw,
    }
    kinds = [name for name, requested in asked.items() if requested]
    what = conjoin(kinds) if kinds else "nothing"
    of = ", ".join(sorted(need.collections))
    if need.modules:
        of += f" of {', '.join(sorted(need.modules))}"
    if need.collections == {"losses"}:
        when = "every step"
    elif need.interval is None:
        when = f"as the hook does (every {STATISTICS_INTERVAL} steps by default)"
    else:
        when = "every step" if need.interval == 1 else f"every {need.interval} steps"
    if need.first_steps is not None:
        when += f", in the first {need.first_steps} steps"
    return f"{what} of {of} {when}"


def _meanings(rule: type[Rule]) -> dict[str, str]:
    """The meaning of each argument, from the docstrings of the rule and its bases."""
    found: dict[str, str] = {}
    for parent in rule.__mro__:
        found = _arguments(inspect.cleandoc(parent.__doc__ or "")) | found
    return found


def _arguments(document: str) -> dict[str, str]:
    """The meaning of each argument, from a docstring's section ``Args``."""
    match = re.search(r"^Args:\n((?: +.*\n?|\n)+)", document, re.MULTILINE)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (match[1] if match else "").splitlines():
        begin = re.match(r" {4}(\w+): (.*)", line)
        if begin:
            current = found.setdefault(begin[1], [begin[2]])
        elif line.startswith(" " * 8):
            current.append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def _plain(value: object) -> object:
    if value is dataclasses.MISSING:
        return None
    if isinstance(value, frozenset | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _print_rule(rule: dict[str, Any]) -> None:
    out = console()
    severities = ", ".join(rule["severities"])
    asked = "" if rule["by_default"] else "; runs only if you name it"
    out.print(plain(f"{rule['rule']} ({severities}{asked})"), style="bold")
    out.print(plain(f"  {rule['meaning']}"))
    out.print(plain(f"  from {rule['source']}"))
    if rule["source"].startswith("tdbg."):
        out.print(plain(f"  tdbg docs {rule['rule']} says what to do about a finding"))
    for text in rule["captures"]:
        out.print(plain(f"  captures {text}"))
    rows = [
        (
            f"  {parameter['name']}",
            "required" if parameter["required"] else repr(parameter["default"]),
            parameter["meaning"],
        )
        for parameter in rule["parameters"]
    ]
    if rows:
        out.print(_table(("  parameter", "default", "meaning"), rows))
    out.print(plain(f"  {COSTS}"))


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, wraps: bool = True
) -> Table:
    """Make a table without lines, whose last column wraps its text or is cut."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        is_last = i == len(columns) - 1
        widest = max(len(row[i]) for row in (columns, *rows))
        made.add_column(
            column, no_wrap=not is_last, min_width=None if is_last else widest
        )
    for row in rows:
        cells = [plain(cell) for cell in row]
        if not wraps:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        made.add_row(*cells)
    return made
