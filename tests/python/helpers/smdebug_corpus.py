"""Directories that smdebug 1.0.34 wrote, and what it reads from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.remote import open_store

__all__ = ["CASES", "CORPUS", "END", "expected", "files_of", "put"]

CORPUS = Path(__file__).parents[2] / "corpus" / "smdebug"
CASES = ("pytorch", "reductions", "workers", "keras", "tape", "mxnet", "xgboost")
END = "training_job_end.ts"


def expected(case: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what smdebug says of a case, and the arrays that it returns."""
    document = json.loads((CORPUS / case / "expected.json").read_text())
    with np.load(CORPUS / case / "expected.npz", allow_pickle=False) as arrays:
        return document, dict(arrays)


def files_of(case: str) -> list[Path]:
    """Return the files of a case."""
    return sorted(each for each in (CORPUS / case / "out").rglob("*") if each.is_file())


def put(case: str, url: str, files: Iterable[Path] | None = None) -> None:
    """Copy a case, or some of its files, to a store."""
    store = open_store(url)
    for file in files_of(case) if files is None else files:
        name = file.relative_to(CORPUS / case / "out").as_posix()
        store.write(name, file.read_bytes())
