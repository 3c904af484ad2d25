"""``tdbg cost``: what a run has cost, and which machines would have cost less."""

from __future__ import annotations

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, plain, table
from tdbg.config.messages import nearest
from tdbg.cost import Instance, Offer, read_prices
from tdbg.errors import ConfigurationError
from tdbg.trial import create_trial
from tdbg.view.cost import RunCost, cost_view, money
from tdbg.view.time import percent_text

__all__ = ["command"]


@click.command("cost")
@options.run
@click.option("--price", type=click.FloatRange(min=0), help="Of a host, for an hour.")
@click.option(
    "--prices",
    type=click.Path(dir_okay=False),
    help="A file of machines and their prices, as CSV or JSON: tdbg docs cost.",
)
@click.option("--on", "machine", help="The machine of --prices that the run was on.")
@options.as_json
def command(
    run: str,
    price: float | None,
    prices: str | None,
    machine: str | None,
    as_json: bool,
) -> None:
    """Say what RUN has cost by part of its time, and what would have cost less."""
    known = {} if prices is None else read_prices(prices)
    now = _machine(machine, known, prices)
    if price is None and now is not None:
        price = now.price_per_hour
    if price is None:
        msg = (
            "there is no price: give --price 1.5, what a host costs for an hour, or "
            "--prices FILE and --on NAME"
        )
        raise ConfigurationError(msg)
    found = cost_view(create_trial(run), price, now=now, candidates=known.values())
    if as_json:
        emit_json({"run": run, **found.to_json()})
    else:
        _print(run, found)


def _machine(
    name: str | None, known: dict[str, Instance], path: str | None
) -> Instance | None:
    if name is None and path is None:
        return None
    if path is None:
        msg = f"--on {name} names a machine of a price file: give --prices FILE"
        raise ConfigurationError(msg)
    if name is None:
        listed = ", ".join(list(known)[:8])
        msg = f"give --on NAME, the machine that the run was on: {path} has {listed}"
        raise ConfigurationError(msg)
    if name not in known:
        msg = f"{path} has no machine {name!r}; {nearest(name, known)}"
        raise ConfigurationError(msg)
    return known[name]


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
    low, high = 100 * offer.saving.low, 100 * offer.saving.high
    saving = f"{low:.0f} to {high:.0f} %" if high - low >= 1 else f"{high:.0f} %"
    seconds = f"{offer.seconds.low:,.0f} to {offer.seconds.high:,.0f} s"
    if offer.seconds.high - offer.seconds.low < 1:
        seconds = f"{offer.seconds.middle:,.0f} s"
    return [
        (
            f"{offer.nodes} x {offer.instance}: saves {saving} "
            f"({money(offer.cost.middle)} instead of {money(cost.total)}, {seconds})"
        ),
        *(f"  if {each}" for each in offer.assumptions),
        f"  to be sure: {offer.experiment}",
    ]
