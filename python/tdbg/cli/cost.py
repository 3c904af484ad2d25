"""``tdbg cost``: what a run has cost, and which machines would have cost less."""

from __future__ import annotations

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, plain, table
from tdbg.cli.pricing import price_options, pricing_of
from tdbg.cost import Offer
from tdbg.errors import ConfigurationError
from tdbg.trial import create_trial
from tdbg.view.cost import RunCost, cost_view, money, offer_text
from tdbg.view.time import percent_text

__all__ = ["command"]


@click.command("cost")
@options.run
@price_options
@options.as_json
def command(
    run: str,
    price: float | None,
    prices: str | None,
    machine: str | None,
    as_json: bool,
) -> None:
    """Say what RUN has cost by part of its time, and what would have cost less."""
    pricing = pricing_of(price, prices, machine)
    if pricing is None:
        msg = (
            "there is no price: give --price 1.5, what a host costs for an hour, or "
            "--prices FILE and --on NAME"
        )
        raise ConfigurationError(msg)
    found = cost_view(
        create_trial(run),
        pricing.per_hour,
        now=pricing.now,
        candidates=pricing.candidates,
    )
    if as_json:
        emit_json({"run": run, **found.to_json()})
    else:
        _print(run, found)


def _print(run: str, cost: RunCost) -> None:
    out = console()
    out.print(plain(f"{run}: {cost.sentence}"))
    units = [
        f"{money(value)} {what}"
        for value, what in (
            (cost.per_1000_steps, "for 1,000 steps"),
            (cost.per_sample, "for a sample"),
        )
        if value is not None
    ]
    out.print(plain("; ".join(units)))
    rows = [(p.name, percent_text(p.share), money(p.cost)) for p in cost.parts]
    out.print(table(("part", "time", "cost"), rows, right=("time", "cost")))
    for hint in cost.hints:
        out.print(plain(hint[:1].upper() + hint[1:]))
    for offer in cost.offers:
        for line in _lines(offer, cost):
            out.print(plain(line))


def _lines(offer: Offer, cost: RunCost) -> list[str]:
    return [
        offer_text(offer, cost.total),
        *(f"  if {each}" for each in offer.assumptions),
        f"  to be sure: {offer.experiment}",
    ]
