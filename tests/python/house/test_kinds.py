"""Names of PyTorch's classes stand where it is hooked; below, kinds are asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

#: What lies below the hooks.
PACKAGES = (
    *("config", "run", "stats", "capture"),
    *("trial", "rules", "actions", "export"),
)
#: The table of kinds by these names, which readers of older runs need too.
TABLE = "config/class_kinds.py"


def all_classes(base: type) -> Iterator[type]:
    """All classes that derive from *base*."""
    for each in base.__subclasses__():
        yield each
        yield from all_classes(each)


@pytest.mark.torch
def test_no_name_of_a_class_of_pytorch_stands_below_the_hooks(repository: Path) -> None:
    from torch import nn

    classes = {
        each.__name__
        for each in all_classes(nn.Module)
        if each.__module__.startswith("torch.nn.modules.")
    }
    assert {"BatchNorm2d", "CrossEntropyLoss", "Linear"} <= classes
    package = repository / "python" / "tdbg"
    found = [
        f"{path.relative_to(package)}:{node.lineno}: {node.value}"
        for folder in PACKAGES
        for path in sorted((package / folder).rglob("*.py"))
        if path != package / TABLE
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in classes
    ]
    assert found == [], "ask for a tdbg.config.Kind"
