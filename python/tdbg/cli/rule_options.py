"""Options for rules and actions, and how verbs print findings and statuses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tdbg import rules
from tdbg.actions import (
    Action,
    ActionSpec,
    Gate,
    Stop,
    make,
    names,
    parse,
    read_specs,
)
from tdbg.cli.output import SEVERITY_STYLES, plain
from tdbg.config.documents import Location
from tdbg.config.quantities import join_names, plural
from tdbg.rules import LearntInvariants, Rule, Status, parse_rules, read_invariants
from tdbg.run.findings import Finding, Severity

__all__ = [
    "ENDS",
    "GONE",
    "STOPPING",
    "ActionOptions",
    "action_options",
    "all_option",
    "are_named",
    "asked_to_stop",
    "coverage_of",
    "invariants_option",
    "parse_rules",
    "print_coverage",
    "print_findings",
    "print_interrupted",
    "print_statuses",
    "rule_option",
    "with_invariants",
]


# States of a run whose training no longer reads requests.
GONE = ("closed", "dead")
# How a training stands, by the state of its run.
ENDS = {
    "closed": "has ended",
    "dead": "is gone, and did not close its run: it was killed, or has crashed",
    "running": "continues",
    "stalled": "has given no sign of life for 10 s, but its process exists",
}
STOPPING = "asked the training to stop"


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """What a command line says about actions.

    Attributes:
        on_finding: Actions, as ``NAME`` or ``NAME:TARGET``.
        stop_on: The least severity at which "stop" stops.
        file: A file of further actions.
        dry_run: Whether actions only log what they would do.
    """

    on_finding: tuple[str, ...]
    stop_on: str
    file: str | None
    dry_run: bool

    def __bool__(self) -> bool:
        return bool(self.on_finding) or self.file is not None

    def specs(self, judging: Sequence[Rule]) -> tuple[ActionSpec, ...]:
        """Return the actions that are named; each is made anew for every run.

        Args:
            judging: The rules; the registry need not know their names.

        Raises:
            ConfigurationError: If an action is unknown, or is for a rule that does not
                judge, so that the action could never act.
        """
        specs: list[ActionSpec] = []
        for text in self.on_finding:
            spec = parse(text)
            if spec.name == "stop":
                spec = dataclasses.replace(spec, severity=Severity.of(self.stop_on))
            specs.append(spec)
        if self.file is not None:
            names = {rule.name for rule in judging}
            specs += (
                _of_rules(spec, names, i, self.file)
                for i, spec in enumerate(read_specs(self.file))
            )
        if self.dry_run:
            specs = [dataclasses.replace(spec, dry_run=True) for spec in specs]
        return tuple(specs)

    def make(
        self, run: str, judging: Sequence[Rule], *, checks_only: bool = False
    ) -> tuple[Action, ...]:
        """Make the actions for a run, or only check that they can be made.

        Raises:
            ConfigurationError: If an action is unknown, or cannot be made.
        """
        return tuple(
            make(spec, run, checks_only=checks_only) for spec in self.specs(judging)
        )


def action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb ``--on-finding``, ``--stop-on``, ``--actions`` and ``--dry-run``.

    The verb gets them as ``actions``, one ``ActionOptions``.
    """

    @click.option(
        "--on-finding",
        multiple=True,
        metavar="ACTION",
        help=f"What to do when a rule finds something: {', '.join(names())}; "
        "some take a target, such as 'webhook:https://...'; repeatable.",
    )
    @click.option(
        "--stop-on",
        type=click.Choice([severity.label for severity in Severity]),
        default="error",
        show_default=True,
        help="The lowest severity at which 'stop' stops the training.",
    )
    @click.option(
        "--actions",
        "file",
        type=click.Path(exists=True, dir_okay=False),
        help="A YAML or JSON file with actions; see tdbg docs actions.",
    )
    @click.option(
        "--dry-run",
        is_flag=True,
        help="Only print which actions tdbg would take.",
    )
    @functools.wraps(command)
    def gathered(
        *args: Any,
        on_finding: tuple[str, ...],
        stop_on: str,
        file: str | None,
        dry_run: bool,
        **others: Any,
    ) -> Any:
        actions = ActionOptions(on_finding, stop_on, file, dry_run)
        return command(*args, actions=actions, **others)

    return gathered


def asked_to_stop(actions: Sequence[Action]) -> Finding | None:
    """The finding for which a stop was requested, or None."""
    for action in actions:
        inner = action.action if isinstance(action, Gate) else action
        if isinstance(inner, Stop) and inner.requested is not None:
            return inner.requested
    return None


def _of_rules(
    spec: ActionSpec, judging: Collection[str], index: int, file: str
) -> ActionSpec:
    """Replace the names of the action's rules by those that findings have."""
    if spec.rules is None:
        return spec
    with Location(file).key("actions").item(index).inside():
        names = (
            name if name in judging else rules.get(name).__name__ for name in spec.rules
        )
        return dataclasses.replace(spec, rules=frozenset(names))


QUIET = Status.NO_ISSUES_FOUND.value
# What statuses mean, in words; these need no line of their own without a message.
SILENT = {
    QUIET: "found nothing",
    Status.STOPPED.value: "found nothing before judging was stopped",
}
WORDS = {
    **SILENT,
    Status.ISSUES_FOUND.value: "found something",
    Status.ERROR.value: "the rule failed",
    Status.IN_PROGRESS.value: "is judging",
    Status.STOPPING.value: "is being stopped",
}
BLIND = "could not judge, or not by all that they need"
INAPPLICABLE = "do not apply to this training"

rule_option = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME",
    help="A rule, 'NAME(parameter=value)', FILE.py:CLASS, or -NAME to leave one out; "
    "repeatable.  Default: all of tdbg's.",
)
invariants_option = click.option(
    "--invariants",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Also compare with what 'tdbg learn' has learnt from healthy runs; "
    "repeatable.",
)
all_option = click.option(
    "--all",
    "in_full",
    is_flag=True,
    help="Also print findings that follow from others in full.",
)


def are_named(rules: Sequence[str]) -> bool:
    """Return whether somebody asks for rules, rather than leaves out some."""
    return any(not rule.lstrip().startswith("-") for rule in rules)


def with_invariants(rules: tuple[str, ...], files: Sequence[str]) -> tuple[str, ...]:
    """Return rules as texts, and one for each file of invariants.

    Without rules, these are the default ones; the name of the rule alone stands for
    the files.

    Raises:
        ConfigurationError: If a file has no invariants.
        UnsupportedFeature: If a later tdbg wrote it.
    """
    if not files:
        return rules
    for file in files:
        read_invariants(file)
    name = LearntInvariants.__name__
    others = (rule for rule in rules or ("default",) if rule != name)
    return (*others, *(f"{name}(file={file!r})" for file in files))


def coverage_of(
    judging: Sequence[Rule], names: Collection[str]
) -> list[dict[str, Any]]:
    """Return how many invariants of each file are of tensors that a run has.

    Args:
        judging: The rules.
        names: The tensors and scalars of the run.
    """
    found: list[dict[str, Any]] = []
    for rule in judging:
        if isinstance(rule, LearntInvariants):
            learnt = rule.invariants()
            missing = learnt.missing(names)
            tensors = list(dict.fromkeys(each.tensor for each in missing))
            of_file = {"file": rule.file, "invariants": len(learnt.invariants)}
            found.append({**of_file, "missing": len(missing), "tensors": tensors})
    return found


def print_coverage(found: Sequence[Mapping[str, Any]], out: Console) -> None:
    """Print how many invariants of each file could be compared."""
    for each in found:
        n, missing = each["invariants"], each["missing"]
        text = f"{each['file']}: compared {n - missing:,} of {plural(n, 'invariant')}"
        if missing:
            text += f"; this run has no {join_names(each['tensors'])}"
        out.print(plain(text))


def print_findings(
    findings: Sequence[Mapping[str, Any]],
    out: Console,
    *,
    in_full: bool = False,
    live: bool = False,
    how: str = "--all",
) -> None:
    """Print findings, given as JSON documents.

    Findings of one rule, step and severity are one problem in several tensors: the
    first one, which is the worst or the first in execution order, is printed in full,
    the others by name.  Findings that follow from another one are named below it, or
    below a line that names it if it was printed before.  Warnings that are over
    come after what goes on, and infos last, but for changes, printed as they come.

    Args:
        findings: The findings.
        out: The console.
        in_full: Whether consequences are printed like any other finding.
        live: Whether these are changes: the end of a consequence is then no news.
        how: What prints consequences in full.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    consequences: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for finding in findings:
        cause = finding.get("cause")
        if cause is not None and not in_full:
            if not (live and finding.get("phase") == "end"):
                consequences.setdefault(_identity(cause), []).append(finding)
            continue
        kind = (finding["rule"], finding["severity"], finding.get("phase"))
        groups.setdefault((*kind, finding["step"]), []).append(finding)
    printed = list(groups.values())
    if not live:  # What is no fault, or over, does not stand before what is.
        printed.sort(key=lambda group: _rank(group[0]))
    for group in printed:
        _print_group(group, out, live=live)
        following = [
            each
            for finding in group
            for each in consequences.pop(_identity(finding), ())
        ]
        if following:
            _print_consequences(following, "it", how, out)
    for (rule, *_), following in consequences.items():
        at = f"{rule} at step {following[0]['cause']['first_step']:,}"
        _print_consequences(following, at, how, out)


def _identity(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key that is unique to a finding, or to the cause of one."""
    first = finding.get("first_global_step", finding["first_step"])
    return finding["rule"], finding["tensor"], first


def _rank(finding: Mapping[str, Any]) -> int:
    """Later are warnings that are over, and infos; an error leaves its harm behind."""
    if finding["severity"] == Severity.INFO.label:
        return 2
    is_over = finding.get("phase") == "end"
    return int(is_over and finding["severity"] == Severity.WARNING.label)


def _print_consequences(
    findings: Sequence[Mapping[str, Any]], cause: str, how: str, out: Console
) -> None:
    """Name the rules, with the worst severity of each if that is an error."""
    worst: dict[str, bool] = {}
    for finding in findings:
        is_error = finding["severity"] == Severity.ERROR.label
        worst[finding["rule"]] = worst.get(finding["rule"], False) or is_error
    names = ", ".join(
        f"{rule} (error)" if is_error else rule for rule, is_error in worst.items()
    )
    # A finding that got worse since is told twice while a training is watched.
    n = len({_identity(each) for each in findings})
    follow, them = ("follow", "them") if n > 1 else ("follows", "it")
    what = f"{plural(n, 'finding')} that {follow} from {cause}"
    out.print(plain(f"    (and {what}: {names}; {how} shows {them})"), style="dim")


def _print_group(
    group: Sequence[Mapping[str, Any]], out: Console, *, live: bool
) -> None:
    first = group[0]
    style = SEVERITY_STYLES.get(first["severity"], "")
    gone = " (gone)" if first.get("phase") == "end" else ""
    text = Text()
    text.append(f"{first['severity']}{gone}", style=style)
    # Only findings outside of training name their mode.
    mode = first.get("mode", "TRAIN")
    of = "" if mode in ("TRAIN", "GLOBAL") else f" ({mode})"
    since, when = first["first_step"], f"{first['step']:,}"
    if since < first["step"]:
        when += f", since {since:,}"
    text.append(f"  {first['rule']} at step {when}{of}: ", style="bold")
    text.append_text(plain(f"{first['tensor']}: {first['message']}"))
    out.print(text)
    if len(group) > 1:
        names = ", ".join(finding["tensor"] for finding in group[1:])
        out.print(plain(f"    and {len(group) - 1} more: {names}"), style="dim")
    # While a training is watched, a finding was told with its advice as it began.
    if first.get("advice") and not (live and gone):
        out.print(plain(f"    -> {first['advice']}"))


def print_interrupted(out: Console) -> None:
    """Print what Ctrl-C has ended, and what it has not."""
    if out.is_terminal:
        out.print()  # It has written ^C.
    out.print("watching has stopped; the training continues")


def print_statuses(
    statuses: Sequence[Mapping[str, Any]], out: Console, *, named: bool
) -> None:
    """Print which rules failed, and why; which found something, and which nothing.

    Args:
        statuses: The statuses as JSON documents.
        out: The console.
        named: Whether the user named the rules.  If not, rules that lacked data share
            a line.
    """
    idle = [s for s in statuses if s["status"] in SILENT and not s["message"]]
    idle = [s for s in idle if not s["n_findings"]]
    blind = [s for s in statuses if s["status"] == QUIET and s["message"]]
    if named:
        for status in blind:
            out.print(plain(f"{status['rule']}: {status['message']}"))
    listed = [status for status in statuses if status not in idle + blind]
    for status in listed:
        if status["status"] == Status.ERROR.value or status["message"]:
            text = "; ".join(filter(None, (WORDS[status["status"]], status["message"])))
            out.print(plain(f"{status['rule']}: {text}"))
    found = [f"{s['rule']} ({s['n_findings']})" for s in listed if s["n_findings"]]
    if found:
        text = f"found something: {', '.join(found)}; tdbg docs NAME explains it"
        out.print(plain(text))
    for name, words in SILENT.items():
        rules = ", ".join(s["rule"] for s in idle if s["status"] == name)
        if rules:
            out.print(plain(f"{words}: {rules}"))
    if blind and not named:
        applicable = [s for s in blind if s.get("applies") is not False]
        others = [s for s in blind if s not in applicable]
        for words, listed, what in (
            (BLIND, applicable, "what is missing"),
            (INAPPLICABLE, others, "why"),
        ):
            if listed:
                rules = ", ".join(status["rule"] for status in listed)
                out.print(plain(f"{words}: {rules}"), style="dim")
                out.print(plain(f"    --rule NAME tells you {what}"), style="dim")
