"""Mistakes from forums, recipes and studies of bugs, by somebody who knows no rule.

    python -m benchmarks.detection verify --corpus benchmarks/detection/third

Written from the names of the rules and their meaning in one line each, and committed
before any rule was run on it.  Which mistakes people make is taken from Humbatova
(2020), Islam (2019), Zhang (2018), Karpathy's recipe, and questions in PyTorch's
forum.  A case is changed only if its predicate or its twin is wrong in itself.
"""

from __future__ import annotations
