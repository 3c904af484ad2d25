"""``tdbg docs``: the manual, as an installation has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tdbg.cli import VERBS, _tdbg, docs
from tdbg.rules import BUILT_IN


def call(*arguments: str) -> Result:
    return CliRunner().invoke(_tdbg, ["docs", *arguments])


def test_every_rule_and_every_page_that_a_page_links_to_is_there() -> None:
    found = docs.pages()
    assert {f"rules/{name}" for name in BUILT_IN} <= set(found)
    for name, file in found.items():
        for link in re.findall(r"\]\(([\w./-]+\.md)", file.read_text("utf-8")):
            target = (file.parent / link).resolve()
            if target.is_relative_to(docs.folder().resolve()):
                assert target.is_file(), (name, link)
    listed = call().output.splitlines()
    assert listed[0].split() == ["page", "title"]
    assert len(listed) == len(found) + 1
    document = json.loads(call("--json").stdout)
    assert {"page": "cli", "title": "The command line"} in document["pages"]


@pytest.mark.parametrize(
    "given",
    ["rules/DeadRelu", "DeadRelu", "deadrelu", "docs/rules/DeadRelu.md#how-it-decides"],
)
def test_a_page_is_found_by_what_people_call_it(given: str) -> None:
    result = call(given)
    assert result.exit_code == 0
    assert result.output == docs.pages()["rules/DeadRelu"].read_text("utf-8")


def test_an_unknown_page_is_refused_with_the_nearest() -> None:
    result = call("overhed")
    assert result.exit_code == 2
    assert "there is no page 'overhed'; did you mean 'overhead'?" in result.stderr


def test_an_installation_without_the_manual_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(docs, "PACKAGE", tmp_path / "python" / "tdbg")
    result = call()
    assert result.exit_code == 3
    assert "has no manual" in result.stderr


def test_help_names_only_pages_that_are_there() -> None:
    for verb in VERBS:
        text = CliRunner().invoke(_tdbg, [verb, "--help"]).output
        assert "docs/" not in text
        for page in re.findall(r"tdbg docs (\w+)", " ".join(text.split())):
            assert call(page).exit_code == 0, (verb, page)
