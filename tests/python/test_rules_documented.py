"""The rule that docs/rules.md shows works as it stands there; defaults are as said."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from rules_fake import FakeRun, judge
from tdbg import rules
from tdbg.needs import Needs
from tdbg.rules import registry


@pytest.fixture
def documentation(repository: Path) -> str:
    return (repository / "docs" / "rules.md").read_text()


def test_the_rule_in_the_documentation_works(
    documentation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    (code,) = re.findall(r"```python\n(.*?)```", documentation, re.DOTALL)
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


@pytest.mark.parametrize("rule", rules.default_rules(), ids=lambda rule: rule.name)
def test_every_rule_is_documented_with_its_defaults(
    rule: rules.Rule, documentation: str
):
    _, _, rest = documentation.partition(f"### {rule.name}\n")
    section, _, _ = rest.partition("\n### ")
    for word in ("Meaning", "Formula", "Trust", "What to do"):
        assert f"*{word}.*" in section
    choices = {"collections", "only_nan", "biases", "rtol", "atol"}
    for parameter, default in rule.parameters().items():
        if default is None or parameter in choices:
            continue
        number = f"{default:g}".replace("e-0", "e-")
        shown = rf"`{parameter}`\s+\({number}( %)?\)"
        assert re.search(shown, section), f"{parameter} ({default:g})"
