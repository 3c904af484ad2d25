"""What a page shows of boosted trees: the sections of the report, as elements.

A page makes no markup out of text.  So the markup of the report, which escapes all text
by construction, goes to it as names of elements, attributes and texts.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import html
import re
from typing import Any, TypeAlias

from tdbg.drawing.markup import VOID, Markup, join
from tdbg.drawing.snippet import unstyled
from tdbg.report.subject import Subject
from tdbg.report.trees.sections import of_trees
from tdbg.trial import Trial
from tdbg.view import diagnosis_of_run

__all__ = ["Node", "elements_of", "tree_sections"]

#: A text, or the name of an element, its attributes, and what is in it.
Node: TypeAlias = "str | list[Any]"
# No text and no value of an attribute has these brackets: the markup escapes them.
_PART = re.compile(r"<(/?)(\w+)([^<>]*)>|([^<]+)")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


def tree_sections(trial: Trial) -> dict[str, Any]:
    """The sections of the report that are about trees, labels and predictions.

    Returns:
        Under ``sections`` of each its ``title`` and ``content``, a list of nodes; none
        for a run that is not one of boosted trees.
    """
    with trial.no_refresh():
        subject = Subject(trial, diagnosis_of_run(trial))
        sections = of_trees(subject) if subject.are_trees else []
        return {
            "sections": [
                {
                    "title": each.title,
                    "content": elements_of(unstyled(join(each.content))),
                }
                for each in sections
            ]
        }


def elements_of(markup: Markup) -> list[Node]:
    """Markup as nodes.

    Example:
        >>> elements_of(tag("p", "a < b ", tag("b", "c"), id="x"))
        [['p', {'id': 'x'}, ['a < b ', ['b', {}, ['c']]]]]
    """
    root: list[Node] = []
    open_: list[list[Node]] = [root]
    for closes, name, rest, text in _PART.findall(markup):
        if text:
            open_[-1].append(html.unescape(text))
        elif closes:
            open_.pop()
        else:
            found = _ATTRIBUTE.findall(rest)
            inside: list[Node] = []
            attributes = {key: html.unescape(value) for key, value in found}
            open_[-1].append([name, attributes, inside])
            if name not in VOID:
                open_.append(inside)
    return root
