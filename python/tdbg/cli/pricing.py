"""The options that say what a host costs: of ``tdbg cost`` and ``tdbg report``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tdbg.config.messages import nearest
from tdbg.cost import Instance, Pricing, read_prices
from tdbg.errors import ConfigurationError

__all__ = ["price_options", "pricing_of"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def price_options(command: _Command) -> _Command:
    """Give a command the options ``price``, ``prices`` and ``machine``."""
    for option in (
        click.option(
            "--on", "machine", help="The machine of --prices that the run was on."
        ),
        click.option(
            "--prices",
            type=click.Path(dir_okay=False),
            help="A file of machines and their prices, as CSV or JSON: tdbg docs cost.",
        ),
        click.option(
            "--price", type=click.FloatRange(min=0), help="Of a host, for an hour."
        ),
    ):
        command = option(command)
    return command


def pricing_of(
    price: float | None, prices: str | None, machine: str | None
) -> Pricing | None:
    """Return what a host costs by these options; None if they do not say.

    Raises:
        ConfigurationError: If the file is none of prices, or has no such machine.
        StorageError: If the file cannot be read.
    """
    known = {} if prices is None else read_prices(prices)
    now = _machine(machine, known, prices)
    if price is None and now is not None:
        price = now.price_per_hour
    return None if price is None else Pricing(price, now, tuple(known.values()))


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
