"""The public names of tdbg: few, listed, importable, and nothing else."""

from __future__ import annotations

import tdbg

EXPECTED = [
    "Collection",
    "CollectionKeys",
    "ModeKeys",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "TdbgError",
    "TrainingStopped",
    "__version__",
    "create_trial",
    "errors",
    "modes",
]


def test_the_public_names_are_these() -> None:
    assert tdbg.__all__ == EXPECTED
    assert dir(tdbg) == EXPECTED


def test_every_public_name_can_be_had() -> None:
    for name in tdbg.__all__:
        assert getattr(tdbg, name) is not None


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert tdbg.__version__ == version("tdbg")


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tdbg, "no_such_name")
