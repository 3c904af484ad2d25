"""Sick trainings by somebody who had not seen the rules, nor the first corpus.

    python -m benchmarks.detection verify --corpus benchmarks/detection/second

Written from the names of the rules and their meaning in one line each, and committed
before any rule was run on it.  A case is changed only if its predicate or its twin is
wrong in itself.
"""

from __future__ import annotations
