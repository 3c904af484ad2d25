"""The rule that docs/rules.md shows works; every rule has a page, which is right."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rules_fake import FakeRun, judge
from tdbg import rules
from tdbg.config import Needs
from tdbg.rules import registry
from tdbg.rules.builtin.observed_rule import ObservedRule
from tdbg.rules.rule import parameters_of

SECTIONS = (
    "What to do",
    "Parameters",
    "How it decides",
    "Sources",
    "Reliability",
)

#: What a hook has seen needs no reference, and rules about time have their own.
REFERRING = [
    name
    for name in registry.BUILT_IN
    if not issubclass(rules.get(name), ObservedRule)
    and ".builtin.time." not in rules.get(name).__module__
]


@pytest.fixture
def documentation(repository: Path) -> str:
    return (repository / "docs" / "rules.md").read_text()


def test_the_rule_in_the_documentation_works(
    documentation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    every = re.findall(r"```python\n(.*?)```", documentation, re.DOTALL)
    (code,) = (block for block in every if "class LargeWeights" in block)
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)
    imports = {"Needs": Needs, "Iterator": Iterator, "dataclass": dataclass}
    vars(module).update(imports, rules=rules)
    exec(compile(code, "docs/rules.md", "exec"), vars(module))  # noqa: S102
    rule = rules.make("LargeWeights", limit=10.0)
    run = FakeRun()
    for step, scale in enumerate([1.0, 20.0, 30.0]):
        run.step(step, {"0.weight": [scale], "1.weight": [1.0]})
    (finding,) = judge(run, rule)
    assert (finding.tensor, finding.step) == ("0.weight", 1)
    assert finding.message == "l2 norm is 20, above 10"


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_rule_has_a_page_with_these_sections(name: str, repository: Path):
    page = page_of(repository, name)
    assert page.startswith(f"# {name}\n")
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == SECTIONS
    assert all(section_of(page, section) for section in SECTIONS)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_parameters_and_defaults_are_as_documented(name: str, repository: Path):
    table = section_of(page_of(repository, name), "Parameters")
    documented = re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", table, re.MULTILINE)
    assert len(documented) == max(0, table.count("\n|") - 1)
    given: Any = rules.get(name)
    assert [parameter for parameter, _ in documented] == [
        parameter.name for parameter in parameters_of(given)
    ]
    for (parameter, shown), known in zip(documented, parameters_of(given), strict=True):
        if known.default is MISSING:
            assert shown == "required", parameter
        else:
            default = ast.literal_eval(shown.strip("`"))
            assert (default, type(default)) == (known.default, type(known.default))


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_severities_are_named_on_the_page_and_in_the_overview(
    name: str, repository: Path, documentation: str
):
    page = section_of(page_of(repository, name), "How it decides")
    (paragraph,) = re.findall(r"(?ms)^Severity: (.*?)(?:\n\n|\Z)", page)
    used = {severity.label for severity in rules.get(name).severities}
    assert severities_in(paragraph) == used
    entry = re.escape(f"[{name}](rules/{name}.md)")
    (shown,) = re.findall(rf"^- {entry} \((.*?)\):", documentation, re.MULTILINE)
    assert severities_in(shown) == used


@pytest.mark.parametrize("name", REFERRING)
def test_a_page_says_what_a_rule_compares_with(name: str, repository: Path):
    """A warning rests on a reference that the rule knows."""
    page = section_of(page_of(repository, name), "How it decides")
    before, _, _ = page.partition("\nSeverity: ")
    paragraphs = [part for part in before.split("\n\n") if part]
    assert paragraphs[-1].startswith("**What it compares with:** ")


@pytest.fixture(scope="module")
def texts_of_rules(repository: Path) -> list[str]:
    """Return the texts that rules make messages from, the longest first."""
    texts = {
        " ".join(text.split())
        for folder in ("rules", "config")
        for path in (repository / "python" / "tdbg" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in re.split(r"\{\w+\}", node.value)  # As str.format fills it in.
    }
    return sorted((text for text in texts if len(text) > 5), key=len, reverse=True)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_the_message_on_a_page_has_the_words_of_the_code(
    name: str, repository: Path, texts_of_rules: list[str]
):
    (shown,) = re.findall(r"```text\n(.*?)```", page_of(repository, name), re.DOTALL)
    left = " ".join(shown.split())
    for text in texts_of_rules:
        left = left.replace(text, "|")
    # Names and short words, such as "are", are left.
    assert len(re.findall(r"[A-Za-z_.]{3,}", left)) <= 5, left


def test_every_page_is_of_a_rule(repository: Path):
    pages = {page.stem for page in (repository / "docs" / "rules").iterdir()}
    assert pages == set(registry.BUILT_IN)


def page_of(repository: Path, name: str) -> str:
    return (repository / "docs" / "rules" / f"{name}.md").read_text()


def section_of(page: str, title: str) -> str:
    _, _, rest = page.partition(f"## {title}\n")
    return rest.partition("\n## ")[0].strip()


def severities_in(text: str) -> set[str]:
    return set(re.findall(r"\b(info|warning|error)\b", text.lower()))
