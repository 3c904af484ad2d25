"""What two environments have, they have in one version."""

from __future__ import annotations

from pathlib import Path

# What MXNet and NumPy 1.23 hold back.
HELD_BACK = {"graphviz", "ml_dtypes", "mxnet", "numpy", "scikit-learn", "scipy"}


def pins(path: Path) -> dict[str, str]:
    """The versions by the names of the packages."""
    lines = (line.strip().lower() for line in path.read_text().splitlines())
    found = (line.split("==") for line in lines if "==" in line)
    return {each[0]: each[1] for each in found}


def test_the_environment_for_mxnet_differs_in_what_mxnet_holds_back(
    repository: Path,
) -> None:
    every = pins(repository / "requirements" / "pinned.txt")
    own = pins(repository / "requirements" / "mxnet.txt")
    assert own.keys() >= HELD_BACK
    differing = {name for name, version in own.items() if every.get(name) != version}
    assert differing == HELD_BACK
