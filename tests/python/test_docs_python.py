"""The examples in Python of the guides are run, in the order in which they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tdbg.rules import registry

ROOT = Path(__file__).parents[2]
# configuration.md has tests of its own; detection.md and case-study.md show pieces of
# programs that are run elsewhere, gpu.md what only a GPU answers.
PAGES = [
    "actions.md",
    "migrating-from-smdebug.md",
    "reading.md",
    "rules.md",
    "tensorboard.md",
]


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs/digits``: 110 steps of a small model, one of them sick."""
    import torch

    import tdbg.pytorch as td

    folder = tmp_path_factory.mktemp("docs")
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    for name, module in {
        "0": torch.nn.Linear(4, 4),
        "1": torch.nn.ReLU(),
        "fc": torch.nn.Linear(4, 2),
    }.items():
        model.add_module(name, module)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.Hook(
        folder / "runs" / "digits",
        include_collections=["weights", "gradients"],
        save_config=td.SaveConfig(save_interval=100),
        save_histogram=True,
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    for step in range(110):
        if step == 105:
            with torch.no_grad():
                model[0].weight[0, 0] = torch.nan
        x = torch.randn(8, 4)
        criterion(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()
    return folder


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    module = ModuleType("docs")
    monkeypatch.setitem(sys.modules, "docs", module)
    content: dict[str, Any] = vars(module)
    if page == "tensorboard.md":
        exec("import tdbg.pytorch as td", content)  # noqa: S102
    try:
        for block in blocks(page):
            code = compile(block, page, "exec", dont_inherit=True)
            exec(code, content)  # noqa: S102 - ours
    finally:
        for value in content.values():
            if hasattr(value, "register_loss"):
                value.close()
        for name, rule in list(registry._registered.items()):
            if rule.__module__ == "docs":
                del registry._registered[name]


def test_every_page_with_examples_is_run_or_said_to_be_tested_elsewhere() -> None:
    elsewhere = {"configuration.md", "detection.md", "case-study.md", "gpu.md"}
    found = {page.name for page in (ROOT / "docs").glob("*.md")}
    with_examples = {page for page in found if blocks(page)}
    assert with_examples == {*PAGES, *elsewhere}
