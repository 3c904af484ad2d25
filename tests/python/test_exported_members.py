"""The public names of tdbg: few, listed, importable, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import tdbg

EXPECTED = [
    "Collection",
    "CollectionKeys",
    "ModeKeys",
    "ReductionConfig",
    "Retention",
    "SaveConfig",
    "SaveConfigMode",
    "TdbgError",
    "TrainingStopped",
    "__version__",
    "create_trial",
    "diff",
    "errors",
    "invariants",
    "learn",
    "modes",
    "rules",
    "sql",
]


def test_the_public_names_are_these() -> None:
    assert tdbg.__all__ == EXPECTED
    assert dir(tdbg) == EXPECTED


def test_every_public_name_can_be_had() -> None:
    for name in tdbg.__all__:
        assert getattr(tdbg, name) is not None


def test_what_the_guides_use_needs_no_import_of_its_own() -> None:
    code = (
        "import tdbg, sys; tdbg.rules.check, tdbg.actions.make, tdbg.stats.Histogram; "
        "tdbg.run.request_capture, tdbg.export.export_tensorboard, tdbg.report.write; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_project(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    assert tdbg.__version__ == project["project"]["version"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tdbg, "no_such_name")
