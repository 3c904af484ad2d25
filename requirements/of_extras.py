"""Print what pyproject.toml requires, and what the extras that are named require.

    python requirements/of_extras.py test lint

So that packages can be installed while tdbg is compiled, and without it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """Of the extras, and of those that they are made of."""
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            if own:
                yield from requirements(project, own[1].split(","))
            else:
                yield requirement


if __name__ == "__main__":
    found = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    every = [*found["dependencies"], *requirements(found, sys.argv[1:])]
    sys.stdout.write("\n".join(dict.fromkeys(every)) + "\n")
