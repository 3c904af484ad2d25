"""The verifier that all benchmarks share: a wrong answer ends the run.

    check(len(names) == 62, "number of tensors")
    check_equal(read_back, array, "value of fc.weight")       # bit for bit
    check_close(mean, expected, 1e-7, "mean of fc.weight")    # relative

Each raises WrongAnswer, which nothing catches: the program fails, and so does
``make bench``.  Verify outside of what is timed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["WrongAnswer", "check", "check_close", "check_closed", "check_equal"]


class WrongAnswer(Exception):
    """A contender gave a wrong answer, so its figures mean nothing."""


def check(condition: object, what: str) -> None:
    """Fail unless *condition* is true."""
    if not condition:
        raise WrongAnswer(what)


def check_equal(got: Any, expected: Any, what: str) -> None:
    """Fail unless arrays have the same type, shape and bits, or values are equal."""
    if not isinstance(expected, np.ndarray):
        check(got == expected, f"{what}: got {got!r}, expected {expected!r}")
        return
    got = np.asarray(got)
    for attribute in ("dtype", "shape"):
        ours, theirs = getattr(got, attribute), getattr(expected, attribute)
        check(ours == theirs, f"{what}: {attribute} {ours}, expected {theirs}")
    check(got.tobytes() == expected.tobytes(), f"{what}: other values")


def check_close(got: float, expected: float, relative: float, what: str) -> None:
    """Fail if *got* is further than *relative* from *expected*, or not a number."""
    off = abs(float(got) - float(expected))
    close = off <= relative * abs(float(expected))  # False for NaN.
    check(close, f"{what}: got {got!r}, expected {expected!r} within {relative:.0e}")


def check_closed(hook: Any, name: str) -> None:
    """Close a hook; fail unless it wrote everything, without an error of its own."""
    check(hook.close(timeout=60.0), f"{name} wrote everything")
    counters = hook.counters()
    check_equal(counters["internal_errors"], 0, f"errors of {name}")
    check_equal(counters["refused_tensors"], 0, f"refused by {name}")
