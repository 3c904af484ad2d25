"""The cost of a run by part of its time, and of profiling; and what is missing."""

from __future__ import annotations

from tdbg.cost import Offer
from tdbg.drawing.markup import Child, tag, with_code
from tdbg.report.page import Section, table, tiles
from tdbg.report.subject import Subject
from tdbg.view.cost import RunCost, money, offer_text
from tdbg.view.time import percent_text

__all__ = ["cost", "profiling"]


def cost(subject: Subject) -> Section | None:
    """Tell what the run cost; None if nobody said what a host costs."""
    if subject.pricing is None:
        return None
    found = subject.cost
    if found is None:
        text = "The profile has no step of training, so nobody can tell what it cost."
        return Section("cost", "Cost", tag("p", text, class_="quiet"))
    rows = [(p.name, percent_text(p.share), money(p.cost)) for p in found.parts]
    columns = ("part of the time", "share", "cost")
    content: list[Child] = [
        tag("p", f"{found.sentence[:1].upper()}{found.sentence[1:]}."),
        _tiles(found),
        table(columns, rows, right=columns[1:]),
        [tag("p", f"{hint[:1].upper()}{hint[1:]}.") for hint in found.hints],
        [_offer(each, found) for each in found.offers],
    ]
    return Section("cost", "Cost", content)


def _tiles(found: RunCost) -> Child:
    rows: list[tuple[str, Child]] = [("Cost so far", money(found.total))]
    if found.per_1000_steps is not None:
        rows.append(("1,000 steps", money(found.per_1000_steps)))
    if found.per_sample is not None:
        rows.append(("A sample", money(found.per_sample)))
    rows.append(("Computing", percent_text(found.usage.productive)))
    return tiles(rows)


def _offer(offer: Offer, found: RunCost) -> Child:
    """A machine that would have cost less, its assumptions, and the experiment."""
    return [
        tag("p", tag("b", f"{offer_text(offer, found.total)}.")),
        tag(
            "ul",
            (tag("li", f"If {each}.") for each in offer.assumptions),
            tag("li", with_code(f"To be sure, {offer.experiment}.")),
        ),
    ]


def profiling(subject: Subject) -> Section | None:
    """Tell what profiling cost the training, and what was not recorded."""
    view = subject.time
    if view.is_empty:
        return None
    content: list[Child] = []
    if view.own_cost is not None:
        content.append(tag("p", f"{view.own_cost.sentence}."))
    if view.lacks:
        content += [
            tag("h3", "What was not recorded"),
            tag(
                "ul",
                (tag("li", f"{each[:1].upper()}{each[1:]}.") for each in view.lacks),
            ),
        ]
    else:
        content.append(tag("p", "Nothing was lost.", class_="quiet"))
    return Section("profiling", "Cost of profiling, and what is missing", content)
