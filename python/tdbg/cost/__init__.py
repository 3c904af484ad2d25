"""Costs of a training, and what would be cheaper: docs/cost.md.

Values in, values out: it reads no run, and knows no prices but those it is given.
"""

from __future__ import annotations

from tdbg.cost.advice import Offer, Range, hints_of, offers_of
from tdbg.cost.prices import Instance, Pricing, read_prices
from tdbg.cost.usage import STARTUP, Usage, cost_of, saving_of

__all__ = [
    "STARTUP",
    "Instance",
    "Offer",
    "Pricing",
    "Range",
    "Usage",
    "cost_of",
    "hints_of",
    "offers_of",
    "read_prices",
    "saving_of",
]
