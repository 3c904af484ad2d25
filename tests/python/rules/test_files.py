"""Rules in files: named by path, refused with a reason, judged apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg import rules
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError
from tdbg.rules.parsing import parse_rules, with_absolute_path

RULE = '''
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tdbg import rules
from tdbg.config import Needs

LOG = {log!r}
if LOG:
    with Path(LOG).open("a") as file:
        file.write(f"{{os.getpid()}}\\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Large(rules.Rule):
    """Report weights whose l2 norm exceeds *limit*."""

    limit: float = 100.0

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset({{"weights"}}))

    def evaluate(self, window: rules.Window) -> Iterator[rules.Evaluation]:
        for table in window.tables():
            norm = table["l2"]
            yield table.judge_bad(
                norm > self.limit,
                rules.Severity.WARNING,
                lambda i, j, norm=norm: rules.Description(
                    message=f"l2 norm is {{norm[i, j]:.3g}}, above {{self.limit:g}}"
                ),
            )


@dataclass
class Thawed(rules.Rule):
    pass


class NoRule:
    pass
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(RULE.format(log=""))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "run"
    with RunBuilder(path) as builder:
        for step in range(6):
            scale = 1000.0 if step == 4 else 1.0
            builder.step(step, {"fc.weight": np.full(3, scale, np.float32)})
    return path


def check(run: Path, rule: object) -> Result:
    arguments = ["check", str(run), "--rule", str(rule), "--json"]
    return CliRunner().invoke(_tdbg, arguments)


def test_a_rule_in_a_file_finds_the_fault_in_a_process_of_its_own(
    tmp_path: Path, run: Path
) -> None:
    log = tmp_path / "log"
    file = tmp_path / "my_rules.py"
    file.write_text(RULE.format(log=str(log)))
    result = check(run, f"{file}:Large(limit=3)")
    assert result.exit_code == 1, result.output
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["rule"], finding["step"]) == ("Large", 4)
    assert finding["message"] == "l2 norm is 1.73e+03, above 3"
    # Once here, where the class is looked at, and once where it judges.
    assert len(set(log.read_text().split())) == 2
    assert check(run, f"{file}:Large(limit=1e9)").exit_code == 0


def test_a_path_may_be_relative_and_stands_for_a_rule_in_python_too(
    file: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    rule = rules.make("./my_rules.py:Large", limit=3)
    assert (rule.name, rule.parameters()) == ("Large", {"limit": 3})
    (same,) = rules.resolve(f"{file}:Large(limit=3)")
    assert same == rule
    assert [f.step for f in rules.check(run, f"{file}:Large").findings] == [4]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my_rule.py:Large", "there is no file .*my_rule.py; did you mean 'my_rules.p"),
        ("nowhere/my_rules.py:Large", "nowhere is not a directory"),
        ("my_rules.py:Larg", "has no rule 'Larg'; did you mean 'Large'"),
        ("my_rules.py", "my_rules.py:ClassName"),
        ("my_rules.py:", "has no rule ''; valid are 'Large', 'Thawed'"),
        ("my_rules.py:NoRule", "NoRule is not a rule: .* derives from tdbg.rules.Rule"),
        ("my_rules.py:LOG", "is not a rule"),
        ("my_rules.py:Thawed", "make it a frozen dataclass"),
        ("my_rules.py:Large(limits=3)", "no parameter 'limits'; did you mean 'limit'"),
        ("broken.py:Large", "cannot be imported: ZeroDivisionError"),
        ("leaves.py:Large", "cannot be imported: SystemExit"),
    ],
)
def test_what_is_wrong_with_a_path_is_said(
    file: Path, run: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.chdir(file.parent)
    Path("broken.py").write_text("1 / 0\n")
    Path("leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(ConfigurationError, match=hint):
        rules.resolve(name)
    result = check(run, name)
    assert result.exit_code == 2


@pytest.mark.parametrize("linked", [False, True])
def test_nothing_in_a_run_is_imported(tmp_path: Path, run: Path, linked: bool) -> None:
    log = tmp_path / "log"
    inside = run / "w" / "deep" / "evil.py"
    inside.parent.mkdir()
    inside.write_text(RULE.format(log=str(log)))
    name = inside
    if linked:
        name = tmp_path / "harmless.py"
        name.symlink_to(inside)
    result = check(run, f"{name}:Large")
    assert result.exit_code == 2
    assert "nothing of a run is ever" in " ".join(result.stderr.split())
    assert not log.exists()


def test_a_text_means_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        with_absolute_path("./a.py:B(x='c.py:D')") == f"{tmp_path}/a.py:B(x='c.py:D')"
    )
    assert with_absolute_path("B(x='c.py')") == "B(x='c.py')"
    assert with_absolute_path("/x/a.py:B") == "/x/a.py:B"
    assert with_absolute_path("default") == "default"


def test_default_stands_for_the_rules_of_tdbg_beside_others(file: Path) -> None:
    chosen = parse_rules(["default", f"{file}:Large"])
    assert chosen == (*rules.default_rules(), rules.make(f"{file}:Large"))
    assert parse_rules([]) == rules.default_rules()
