"""How capture was configured, and how to get at all this again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from tdbg.compare import flattened
from tdbg.drawing.markup import Child, Markup, join, shortened, tag
from tdbg.report.page import Section, table
from tdbg.report.subject import Subject
from tdbg.run.json_values import mapping_of
from tdbg.view import accused_tensors

__all__ = ["reproduce", "settings"]

MOST = 300
# Settings of the hook that rules make, not the user.
OF_RULES = ("rules", "needs")


def settings(subject: Subject) -> Section:
    """The configuration of the hook, a row a setting; folded, a row a rule."""
    hook = mapping_of(subject.configuration.get("hook", subject.configuration))
    if not hook:
        text = "The run does not record how it was captured."
        return Section("settings", "Settings", tag("p", text, class_="quiet"))
    of_user = {key: value for key, value in hook.items() if key not in OF_RULES}
    of_rules = {key: hook[key] for key in OF_RULES if hook.get(key)}
    summary = tag("summary", "Parameters of the rules, and what they request")
    folded = tag("details", summary, _listed(of_rules)) if of_rules else None
    return Section("settings", "Settings", [_listed(of_user), folded])


def _listed(values: Mapping[str, Any]) -> Markup:
    rows = [row for key, value in values.items() for row in _rows(key, value)]
    listed = table(("setting", "value"), [(tag("code", k), v) for k, v in rows[:MOST]])
    more = len(rows) - MOST
    if more <= 0:
        return listed
    return join([listed, tag("p", f"{more} more are not listed.", class_="quiet")])


def _rows(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Path and words of a setting; of what a list has, such as a rule, one row each."""
    entries = value if isinstance(value, list | tuple) else ()
    if not entries or not all(isinstance(each, Mapping) for each in entries):
        yield from flattened(value, key)
        return
    for i, each in enumerate(entries):
        rest = {name: held for name, held in each.items() if name != "name"}
        named = f"{key}[{i}]" if "name" not in each else f"{key}: {each['name']}"
        yield named, "; ".join(f"{path} {text}" for path, text in flattened(rest))


def reproduce(subject: Subject, options: str = "") -> Section:
    """Show commands and code that show the same, and more.

    Args:
        subject: The run.
        options: Of ``tdbg report``, for the same page.
    """
    run = shortened(subject.trial.name, 80)
    accused = accused_tensors(subject.diagnosis.problems, 1)
    shown = [name for name in accused if subject.trial.has_tensor(name)]
    tensor = shown[0] if shown else next(iter(subject.trial.tensor_names()), "TENSOR")
    name = quote(shortened(tensor, 120))
    run_word = quote(run)
    report = f"tdbg report {run_word} {options}"
    commands = (
        f"{report:<{len(run_word) + 24}}# this page",
        f"tdbg check {run_word} --all       # judge it again; exit code 1 if sick",
        f"tdbg show {run_word} {name}",
        f"tdbg fsck {run_word}              # verify every checksum",
    )
    code = (
        "import tdbg",
        f"trial = tdbg.create_trial({run!r})",
        f"trial.tensor({shortened(tensor, 120)!r}).envelope(columns=800)",
    )
    unread: Child = None
    if subject.unread:
        listed = list(dict.fromkeys(subject.unread))[:20]
        unread = [
            tag("h3", "What could not be read for this page"),
            tag("ul", (tag("li", each) for each in listed)),
        ]
    return Section(
        "reproduce",
        "How to reproduce",
        [
            tag(
                "p",
                "In the folder of the run; its identity is ",
                tag("code", subject.trial.uuid),
                ".",
            ),
            _listing(commands),
            _listing(code),
            unread,
        ],
    )


def _listing(lines: Sequence[str]) -> Markup:
    """Lines of code, as they are to be typed."""
    breaks = (join([line, Markup("\n")]) for line in lines)
    return tag("pre", tag("code", breaks), tabindex=0)
