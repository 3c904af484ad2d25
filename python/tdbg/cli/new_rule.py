"""``tdbg new-rule``: a rule of one's own to begin with, and its test."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from tdbg.cli import options
from tdbg.cli.output import console, emit_json, plain
from tdbg.errors import ConfigurationError
from tdbg.rules import names
from tdbg.run.directory import RUN_FILE

__all__ = ["command", "snake_case"]

RULE = '''\
"""{name}: a rule for tdbg. docs/rules.md explains how to write rules."""

from collections.abc import Iterator
from dataclasses import dataclass

from tdbg import rules
from tdbg.config.needs import Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class {name}(rules.Rule):
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
                    message=f"l2 norm is {{norm[i, j]:.3g}}, above {{self.limit:g}}",
                    value=float(norm[i, j]),
                    threshold=self.limit,
                    advice="say here what to do about it",
                ),
            )
'''

TEST = '''\
"""Tests of {name}: run them with pytest."""

from pathlib import Path

import numpy as np
from tdbg import rules
from tdbg.rules import testing

RULE = Path(__file__).with_name("{module}.py")


def record(path: Path, scale_of_step: list[float]) -> Path:
    with testing.Recording(path) as run:
        for scale in scale_of_step:
            run.step({{"fc.weight": np.full(4, scale, np.float32)}})
    return path


def test_a_sick_run_is_found_where_it_begins(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [1.0, 2.0, 1000.0, 1000.0])
    (finding,) = testing.judge(run, rules.make(f"{{RULE}}:{name}"))
    assert (finding.tensor, finding.step) == ("fc.weight", 2)
    assert finding.value == 2000.0


def test_a_healthy_run_is_left_alone(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [1.0, 2.0, 3.0])
    assert testing.judge(run, rules.make(f"{{RULE}}:{name}")) == []


def test_the_limit_is_a_parameter(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [1.0, 2.0, 3.0])
    (finding,) = testing.judge(run, rules.make(f"{{RULE}}:{name}", limit=5.0))
    assert finding.step == 2
'''


@click.command("new-rule")
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False),
    default=".",
    show_default=True,
    help="Where to write it.",
)
@options.as_json
def command(name: str, folder: str, as_json: bool) -> None:
    """Write a rule called NAME, such as LargeWeights, and a test that passes."""
    module = snake_case(name)
    place = Path(folder)
    files = {
        place / f"{module}.py": RULE.format(name=name),
        place / f"test_{module}.py": TEST.format(name=name, module=module),
    }
    _check(place, files)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        msg = f"cannot write {error.filename}: {error.strerror}"
        raise ConfigurationError(msg) from error
    rule, test = files
    if as_json:
        emit_json({"rule": str(rule), "test": str(test), "name": name})
        return
    out = console()
    out.print(plain(f"wrote {rule} and {test}"))
    out.print(plain(f"  python -m pytest {test}"))
    out.print(plain(f"  tdbg check RUN --rule {_path(rule)}:{name}"))


def snake_case(name: str) -> str:
    """The module of a rule: LargeWeights is in large_weights.

    Raises:
        ConfigurationError: If the name is not one for a class, or of a rule of tdbg.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name):
        words = re.findall(r"[A-Za-z0-9]+", name)
        better = "".join(word[:1].upper() + word[1:] for word in words)
        is_better = better[:1].isalpha() and not keyword.iskeyword(better)
        hint = f"write {better}" if is_better else "write LargeWeights"
        msg = f"{name!r} is not a name for a rule, which is an ASCII class name; {hint}"
        raise ConfigurationError(msg)
    if name in names():
        msg = f"there is a rule {name} already; choose another name"
        raise ConfigurationError(msg)
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parts.lower()


def _check(place: Path, files: dict[Path, str]) -> None:
    for folder in (place.absolute(), *place.absolute().parents):
        if (folder / RUN_FILE).exists():
            msg = f"{place} lies in the run {folder}, and tdbg takes no rules from runs"
            raise ConfigurationError(msg)
    for path in files:
        if path.exists() or path.is_symlink():
            msg = f"{path} already exists; tdbg leaves it as it is"
            raise ConfigurationError(msg)


def _path(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"
