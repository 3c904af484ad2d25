"""Directories that smdebug 1.0.34 wrote, and what it reads from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CASES", "CORPUS", "expected"]

CORPUS = Path(__file__).parents[2] / "corpus" / "smdebug"
CASES = ("pytorch", "reductions", "workers", "keras", "tape", "mxnet", "xgboost")


def expected(case: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what smdebug says of a case, and the arrays that it returns."""
    document = json.loads((CORPUS / case / "expected.json").read_text())
    with np.load(CORPUS / case / "expected.npz", allow_pickle=False) as arrays:
        return document, dict(arrays)
