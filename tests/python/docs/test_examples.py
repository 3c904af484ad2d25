"""The examples of the guides: Python is run, page by page; commands are parsed."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from tdbg.cli import VERBS, module_of
from tdbg.errors import ConfigurationError
from tdbg.rules import registry
from tdbg.rules.parsing import parse_rules

ROOT = Path(__file__).parents[3]
# What the page about smdebug's runs opens.
OF_SMDEBUG = ROOT / "tests" / "corpus" / "smdebug" / "pytorch" / "out"
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


# Frameworks that take over a process, or choose something for it when imported.
ALONE = ("jax", "keras", "tensorflow")
# What needs an environment of its own: tests/mxnet runs it there.
APART = ("mxnet",)
PYTHON_PAGES = [
    page for page in PAGES if page not in ALONE + APART and blocks(page, "python")
]
assert PYTHON_PAGES


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    loader = torch.utils.data.DataLoader(torch.randn(880, 4), batch_size=8)
    for step, x in enumerate(loader):
        if step == 105:
            with torch.no_grad():
                model[0].weight[0, 0] = torch.nan
        criterion(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()
    return folder


@pytest.mark.torch
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_examples_of_a_page_run(
    page: str, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they stand, in a folder with a run of its own."""
    shutil.copytree(recorded / "runs", tmp_path / "runs")
    shutil.copytree(OF_SMDEBUG, tmp_path / "smdebug-output")
    monkeypatch.setenv("TDBG_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module = ModuleType("docs")
    monkeypatch.setitem(sys.modules, "docs", module)
    content: dict[str, Any] = vars(module)
    try:
        for block in blocks(page, "python"):
            code = compile(block, page, "exec", dont_inherit=True)
            exec(code, content)  # noqa: S102 - ours
    finally:
        for value in list(content.values()):
            if hasattr(value, "register_loss"):
                value.close()
        for name, rule in list(registry._registered.items()):
            if rule.__module__ == "docs":
                del registry._registered[name]


@pytest.mark.parametrize("page", ALONE)
def test_the_examples_of_a_page_run_in_a_process_of_their_own(
    page: str, tmp_path: Path
) -> None:
    script = tmp_path / f"{page}_page.py"
    script.write_text("".join(blocks(page, "python")))
    ended = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


def commands(page: str) -> list[str]:
    """The lines of a page that begin with ``tdbg``, without what explains them."""
    shown = "".join(blocks(page, "sh"))
    return re.findall(r"^tdbg .*?(?=\s{2,}#|$)", shown, re.MULTILINE)


COMMAND_PAGES = [
    page
    for page in [*PAGES, *(f"rules/{rule}" for rule in registry.BUILT_IN)]
    if commands(page)
]


def parse(line: str) -> None:
    """Refuse a command line whose verb, options or rules do not exist."""
    verb, *arguments = shlex.split(line.partition(" || ")[0])[1:]
    assert verb in VERBS, line
    command = importlib.import_module(module_of(verb)).command
    if isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    options, _, _ = command.make_parser(click.Context(command)).parse_args(arguments)
    for rule in options.get("rules") or ():
        if rule != "default" and ".py" not in rule:
            parse_rules([rule])


@pytest.mark.parametrize("page", COMMAND_PAGES)
def test_the_commands_of_a_page_have_verbs_options_and_rules_that_exist(
    page: str,
) -> None:
    for line in commands(page):
        parse(line)


def test_a_command_that_is_wrong_would_be_found() -> None:
    for wrong, error in [
        ("tdbg chek runs/digits", AssertionError),
        ("tdbg check runs/digits --no-such-option", click.UsageError),
        ("tdbg check runs/digits --rule 'DeadRelu(no=1)'", ConfigurationError),
    ]:
        with pytest.raises(error):
            parse(wrong)
