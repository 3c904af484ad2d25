"""What rules about losses have in common: what they see, and how they read it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tdbg.findings import Severity
from tdbg.needs import Needs
from tdbg.rules._base import Rule
from tdbg.rules.columns import facts_of_steps
from tdbg.rules.window import (
    Bools,
    Description,
    Floats,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["OfLosses", "in_game", "losses_of", "milder"]


# So many optimizers for so many losses may be players of a game.
SEVERAL = 2


class OfLosses(Rule):
    """Base of rules about losses."""

    __slots__ = ()

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        """The rows of losses, of training and evaluation, which hold their values."""
        return Needs(collections=frozenset({"losses"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """Losses."""
        return tensor.role == "loss"


def losses_of(table: Table, i: int) -> Floats:
    """The losses in row *i*; NaN where one is not known, or is no number."""
    known = table.known[i] & (table.not_finite[i] == 0)
    return np.where(known, table["mean"][i], np.nan)


def in_game(window: Window, table: Table) -> Bools:
    """At which steps several optimizers step for several losses.

    What one of them wins another may lose, as of generator and critic: none of their
    losses says by itself whether the training gets anywhere.
    """
    result = np.zeros(len(table.steps), dtype=bool)
    if table.roles.count("loss") < SEVERAL:
        return result
    for facts, steps in facts_of_steps(window, table):
        if facts is not None:
            owners = {parameter.optimizer for parameter in facts.parameters.values()}
            result[steps] = len(owners - {None}) >= SEVERAL
    return result


def milder(judgement: Judgement, game: Bools, severity: Severity) -> Judgement:
    """The same with a milder severity, and why, at the steps of a game."""

    def describe(i: int, j: int) -> Description:
        told = judgement.describe(i, j)
        return replace(told, advice=_GAME) if game[j] else told

    warned = judgement.levels == Severity.WARNING
    levels = np.where(warned & game, np.int8(severity), judgement.levels)
    return replace(judgement, levels=levels, describe=describe)


_GAME = (
    "several optimizers train against several losses: if these are adversaries, their "
    "losses need not fall; judge by what is made, and see that neither side has won "
    "for good"
)
