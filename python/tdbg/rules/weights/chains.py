"""Chains of layers in which something grows, or shrinks, from each to the next.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["chain_of_most_change"]

# Transitions from layer to layer that make a chain, at least.
MIN_TRANSITIONS = 3
# By how much each layer must at least differ from the one before.
MIN_FACTOR = 1.5


def chain_of_most_change(sizes: Mapping[str, float], threshold: float) -> list[str]:
    """The layers over which sizes change the most, always in the same direction.

    Args:
        sizes: By layer, in their order; what is not above zero is passed over.
        threshold: The change over the whole chain, at least, as a ratio.

    Returns:
        Their names; empty if there is no such chain.

    Example:
        >>> chain_of_most_change(
        ...     {"a": 1.0, "b": 10.0, "c": 100.0, "d": 1e3, "e": 2.0}, 100
        ... )
        ['a', 'b', 'c', 'd']
    """
    layers = [(name, size) for name, size in sizes.items() if size > 0]
    best: list[str] = []
    greatest = threshold
    for direction in (1.0, -1.0):
        start = 0
        for end in range(1, len(layers) + 1):
            if end < len(layers):
                factor = (layers[end][1] / layers[end - 1][1]) ** direction
                if factor >= MIN_FACTOR:
                    continue
            change = (layers[end - 1][1] / layers[start][1]) ** direction
            if end - 1 - start >= MIN_TRANSITIONS and change >= greatest:
                greatest = change
                best = [name for name, _ in layers[start:end]]
            start = end
    return best
