"""Mistakes of everyday work, written from the list of what the rules are for.

    python -m benchmarks.detection verify --corpus benchmarks/detection/fourth

Its author has read no rule, no page of a rule, no threshold and no result, only the
one-line meaning of each rule; for each there are two trainings in which somebody
makes the mistake as it is usually made.  Committed before any rule was run on it.  A
case is changed only if its predicate or its twin is wrong in itself.
"""

from __future__ import annotations
