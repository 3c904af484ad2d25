"""What the fingerprints of a run say about its samples: values that rules judge.

Implements docs/fingerprints.md, "What rules find in them".

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Draws", "Leak", "Order", "Pairing", "SampleFacts", "Shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Batches that come in one order in each round.

    Attributes:
        period: Batches in a round.
        rounds: How many rounds had this order.
        step: The first step of the second one.
        loader: What is known of the loader that all of them come from; empty: nothing.
    """

    period: int
    rounds: float
    step: int
    loader: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A pass of evaluation whose batches mix samples that were trained on with others.

    Attributes:
        trained: Different samples that were trained on in the last two rounds.
        evaluated: Different samples of the pass.
        step: Its first step.
        is_of_numbers: Whether the samples hold floating-point numbers.
    """

    trained: int
    evaluated: int
    step: int
    is_of_numbers: bool

    @property
    def share(self) -> float:
        """Of the samples, those that were trained on."""
        return self.trained / self.evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The samples that a training drew from a loader with a dataset of known length.

    Attributes:
        drawn: How many it drew.
        distinct: How many of them are different, each with its label.
        expected: How many would be, if all in the dataset are.
        dataset: Length of the dataset.
        copies: Batches, one after the other, that are equal; as many as the loader
            has workers.  0: they are not.
        step: The first step.
    """

    drawn: int
    distinct: int
    expected: float
    dataset: int
    copies: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What ranks that average their gradients are given.

    Attributes:
        ranks: How many were compared.
        steps: At how many steps.
        equal: Of these, how many with the same batch on all ranks.
        shared: Of a rank's first samples, before the first that comes again, the share
            that another rank has, too.
        samples: How many samples that is, of all ranks.
        step: The first step.
    """

    ranks: int
    steps: int
    equal: int
    shared: float
    samples: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How samples go with each other and with their labels.

    Attributes:
        views: What is equal at each of the last steps: "inputs", "halves" or "calls";
            "": nothing.
        steps: How many steps in a row.
        view_step: The first of these.
        recurring: Samples that came often enough to tell; 0: it cannot be told.
        relabelled: Of samples that came for the second time, the share with another
            label.
        by_chance: The same share of labels that have nothing to do with them.
        later: Samples that came later with a label that they never had, as a multiple
            of those that labels at random would bring.
        label_step: The first step at which a sample came with another label.
    """

    views: str = ""
    steps: int = 0
    view_step: int = 0
    recurring: int = 0
    relabelled: float = 0.0
    by_chance: float = 0.0
    later: float = 0.0
    label_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    """What is known of the samples that a model was given, up to the end of a bin.

    Attributes:
        order: Of its batches, if that repeats.
        leak: The pass of evaluation with the largest leak, if there is one.
        coverage: Of the loader's dataset, if its length is known.
        shares: Of the ranks, if there are several that average gradients.
        pairing: Of views and labels.
        trained: How many samples it was trained on.
        evaluated: How many it was evaluated on.
    """

    order: Order | None = None
    leak: Leak | None = None
    coverage: Draws | None = None
    shares: Shares | None = None
    pairing: Pairing = field(default_factory=Pairing)
    trained: int = 0
    evaluated: int = 0
