"""What was once put in order stays so: figures of the structure that may only fall.

Each figure stands with its limit. A limit is lowered by whoever makes it too high, and
raised by nobody: a figure that exceeds it says what to level first.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from house_figures import Package, circles, layers_drawn, longest_chain
from tdbg import rules

#: What a session keeps for itself; hooks ask the session.
PARTS_OF_A_SESSION = {
    *("machine", "recorder", "policy", "step_writer", "meter", "counted"),
}
LONGEST_CHAIN = 24
FLOORS = 10
#: Of all modules.
SHARE_WITH_ONE_IMPORTER = 0.15
LINES, COMPLEXITY = 60, 15
#: Functions that exceed one of these, and why.
LARGE = {
    "cli.rule_options:print_statuses": "one case for each status",
    "cli.sweep:judge_many": "a loop over runs, with all that can go wrong with one",
    "hooks.pytorch.capture.registered_modules:ModuleCapture.begin": "a step's path",
    "rules.builtin.weights.first_weights:untrained": "many weights are left out",
    "trial.reports:_merge": "one loop for each part of a model's description",
    "trial.steps:_Workers.__init__": "one pass over the states of all workers",
}
#: Names of several public classes that mean the same.
OF_ONE_MEANING = {
    "Hook": "captures a training, in each framework",
    "TdbgCallback": "captures a training, in each library of trainers",
    "Training": "what the demo trains, in each framework",
}
#: The face of another package, whose names are that one's.
SMDEBUG = "tdbg.compat.smdebug"
ODD_OPENING = re.compile(
    r"(What|Of|The same|The others|None|Nothing|It|They|Who|Those|That|Such|As|Both|So)"
    r"\b"
)


@pytest.fixture(scope="module")
def package(repository: Path) -> Package:
    return Package(repository / "python" / "tdbg")


def test_hooks_do_not_reach_through_the_session(package: Package) -> None:
    taken = package.parts_taken_of("session", PARTS_OF_A_SESSION, "hooks", "launch")
    assert taken == []


def test_modules_do_not_import_each_other(package: Package) -> None:
    assert circles(package.graph()) == []


def test_modules_do_not_import_each_other_later(package: Package) -> None:
    assert circles(package.graph(lazy=True)) == []


def test_modules_do_not_need_types_of_each_other(package: Package) -> None:
    assert circles(package.graph(lazy=True, typing=True)) == []


def test_chains_of_imports_are_short(package: Package) -> None:
    assert longest_chain(package.graph()) <= LONGEST_CHAIN


def test_a_package_has_few_floors(package: Package) -> None:
    higher = {
        name: floors
        for name in package.packages()
        if (floors := package.floors(name)) > FLOORS
    }
    assert higher == {}


def test_few_modules_have_one_importer(package: Package) -> None:
    found = package.with_one_importer()
    assert len(found) <= SHARE_WITH_ONE_IMPORTER * len(package.trees), found


def test_a_function_is_small_and_plain(package: Package) -> None:
    large = {
        each.name.removeprefix("tdbg."): each
        for each in package.functions
        if each.lines > LINES or each.complexity > COMPLEXITY
    }
    assert {name: large[name] for name in large.keys() - LARGE.keys()} == {}
    assert LARGE.keys() - large.keys() == set()


def test_a_public_name_has_one_meaning(package: Package) -> None:
    counted = package.public_classes(without=SMDEBUG)
    twice = {name for name, count in counted.items() if count > 1}
    assert twice == OF_ONE_MEANING.keys()


def test_rules_are_listed_in_one_place(repository: Path) -> None:
    names = set(rules.names())
    lists = [
        path.name
        for path in sorted((repository / "python" / "tdbg").rglob("*.py*"))
        if path.suffix in {".py", ".pyi"}
        and 2 * len(names & {*re.findall(r"\w+", path.read_text("utf-8"))}) > len(names)
    ]
    assert lists == ["catalog.pyi"]


def test_a_docstring_begins_with_what_it_is_or_does(package: Package) -> None:
    lines = package.one_line_docstrings()
    assert [each for each in lines if ODD_OPENING.match(each[1])] == []


def test_the_architecture_is_drawn_as_it_is_held(repository: Path) -> None:
    config = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    held = [set(layer.split(" | ")) for layer in reversed(contract["layers"])]
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    assert [*layers_drawn(page, "Python"), {"__main__"}] == held
