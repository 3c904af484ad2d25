"""Numbers and names in sentences, as people write them.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "affected",
    "conjoin",
    "exact",
    "fold",
    "join_names",
    "lowered",
    "number",
    "percent",
    "plural",
    "reach",
    "times",
]

# Between these bounds a number is written out; beyond them it gets an exponent.
_LEAST, _LARGEST = 1e-4, 1e6
_NAMES = ((1e9, "billion"), (1e6, "million"))
_BEYOND_NAMES = 1e12


def number(value: float, digits: int = 3) -> str:
    """Return a number, rounded to some significant digits.

    Example:
        >>> number(0.00123456), number(1853.2), number(123456), number(1.2e-9)
        ('0.00123', '1,850', '123,000', '1.2e-9')
    """
    if not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "NaN")
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded and not _LEAST <= abs(rounded) < _LARGEST:
        mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    if abs(rounded) >= 1.0:
        digits = max(digits, len(str(int(abs(rounded)))))
    return f"{rounded:,.{digits}g}"


def exact(value: float) -> str:
    """Return a limit or a setting without rounding: 0.5, 1,000, 1e-7.

    Example:
        >>> exact(0.5), exact(1e-7), exact(1000)
        ('0.5', '1e-7', '1,000')
    """
    return number(value, 12)


def percent(value: float) -> str:
    """Return a percentage without false digits.

    Example:
        >>> percent(76.19), percent(0.2512), percent(5.0), percent(99.98)
        ('76%', '0.25%', '5%', 'over 99.9%')
    """
    size = abs(value)
    if 99.5 <= size < 100.0:
        return f"{value:.1f}%" if size < 99.95 else "over 99.9%"
    return f"{number(value, 2)}%" if size < 10.0 else f"{value:,.0f}%"


def times(factor: float) -> str:
    """Return a factor, as in "14 times", "300 times" or "10 million times".

    Example:
        >>> times(1.62), times(299.9), times(1e7)
        ('1.6 times', '300 times', '10 million times')
    """
    return f"{_spoken(factor, 2)} times"


def fold(factor: float) -> str:
    """Return a rough factor, as in "200-fold".

    Example:
        >>> fold(186.2), fold(1.62)
        ('200-fold', '1.6-fold')
    """
    return f"{_spoken(factor, 1 if factor >= 9.5 else 2)}-fold"


def _spoken(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits - 1}e}")
    for size, name in _NAMES:
        if size <= rounded < _BEYOND_NAMES:
            return f"{number(rounded / size, digits)} {name}"
    return number(rounded, digits)


def plural(n: int, noun: str) -> str:
    """Return a count with its noun: no layers, 1 layer, 1,853 layers.

    Example:
        >>> plural(1, "layer"), plural(1853, "step"), plural(2, "batch")
        ('1 layer', '1,853 steps', '2 batches')
    """
    ending = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{f'{n:,}' if n else 'no'} {noun}{'' if n == 1 else ending}"


def reach(first: int, last: int) -> str:
    """Return where something begins and ends: ``12``, ``1,200 to 1,853``."""
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def affected(n: int, of: int, noun: str, names: Sequence[str] = ()) -> str:
    """Return the sentence that says how many things are affected, of how many.

    Args:
        n: How many are affected.
        of: How many there are.
        noun: Names one of them.
        names: The affected ones; the sentence names the first three, if there are
            several: a finding names its tensor anyway.

    Example:
        >>> affected(4, 22, "weight"), affected(1, 3, "layer"), affected(3, 3, "layer")
        ('4 of 22 weights are affected.', '1 of 3 layers is affected.', \
'All 3 layers are affected.')
        >>> affected(2, 9, "layer", ["a", "b"])
        '2 of 9 layers are affected: a, b.'
    """
    if n == of == 1:
        return f"The only {noun} is affected."
    which = f"{n:,} of {plural(of, noun)}"
    if n == of:
        which = f"Both {noun}s" if n == 2 else f"All {plural(n, noun)}"
    return f"{which} {'is' if n == 1 else 'are'} affected{_list(names)}."


def lowered(sentence: str) -> str:
    """Return a sentence with a small first letter, to go on after a colon."""
    return sentence[:1].lower() + sentence[1:]


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, and add how many more there are.

    Example:
        >>> join_names(["a", "b", "c", "d", "e"]), join_names(["a", "b"])
        ('a, b, c and 2 more', 'a, b')
    """
    more = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {more:,} more" if more > 0 else shown


def conjoin(words: Sequence[str]) -> str:
    """Join words as a sentence names them: all of them.

    Example:
        >>> conjoin(["losses", "weights", "gradients"]), conjoin(["losses"])
        ('losses, weights and gradients', 'losses')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _list(names: Sequence[str]) -> str:
    return f": {join_names(names)}" if len(names) > 1 else ""
