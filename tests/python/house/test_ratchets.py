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
REACHES_THROUGH_SESSION = 63  # To be 0.
LAZY_CIRCLES = 3  # To be 0.
LARGEST_TYPING_CIRCLE = 60  # To be small.
LONGEST_CHAIN = 31  # To be 24.
FLOORS = 10
#: Packages that have more floors. To be none.
MORE_FLOORS = {"hooks": 12, "trial": 13}
#: Of all modules. To be 0.15.
SHARE_WITH_ONE_IMPORTER = 0.23
LINES, COMPLEXITY = 60, 15
LARGE_FUNCTIONS = 36  # To be those that have a reason.
CLASSES_OF_ONE_NAME = 17  # To be 0.
#: The face of another package, whose names are that one's.
SMDEBUG = "tdbg.compat.smdebug"
LISTS_OF_RULES = 2  # To be 1.
#: Of docstrings of one line. To be 0.02.
SHARE_OF_ODD_OPENINGS = 0.095
ODD_OPENING = re.compile(
    r"(What|Of|The same|The others|None|Nothing|It|They|Who|Those|That|Such|As|Both|So)"
    r"\b"
)


@pytest.fixture(scope="module")
def package(repository: Path) -> Package:
    return Package(repository / "python" / "tdbg")


def test_hooks_do_not_reach_through_the_session(package: Package) -> None:
    taken = package.parts_taken_of("session", PARTS_OF_A_SESSION, "hooks", "launch")
    assert len(taken) <= REACHES_THROUGH_SESSION, taken


def test_modules_do_not_import_each_other(package: Package) -> None:
    assert circles(package.graph()) == []


def test_modules_do_not_import_each_other_later(package: Package) -> None:
    found = circles(package.graph(lazy=True))
    assert len(found) <= LAZY_CIRCLES, found


def test_modules_do_not_need_types_of_each_other(package: Package) -> None:
    found = circles(package.graph(lazy=True, typing=True))
    assert max(map(len, found), default=0) <= LARGEST_TYPING_CIRCLE, found


def test_chains_of_imports_are_short(package: Package) -> None:
    assert longest_chain(package.graph()) <= LONGEST_CHAIN


def test_a_package_has_few_floors(package: Package) -> None:
    higher = {
        name: floors
        for name in package.packages()
        if (floors := package.floors(name)) > MORE_FLOORS.get(name, FLOORS)
    }
    assert higher == {}


def test_few_modules_have_one_importer(package: Package) -> None:
    found = package.with_one_importer()
    assert len(found) <= SHARE_WITH_ONE_IMPORTER * len(package.trees), found


def test_a_function_is_small_and_plain(package: Package) -> None:
    large = [
        each
        for each in package.functions
        if each.lines > LINES or each.complexity > COMPLEXITY
    ]
    assert len(large) <= LARGE_FUNCTIONS, large


def test_a_public_name_is_that_of_one_class(package: Package) -> None:
    counted = package.public_classes(without=SMDEBUG)
    twice = sorted(name for name, count in counted.items() if count > 1)
    assert len(twice) <= CLASSES_OF_ONE_NAME, twice


def test_rules_are_listed_in_one_place(package: Package) -> None:
    names = set(rules.names())
    lists = [
        module
        for module in package.trees
        if len(names & package.named_in(module)) > len(names) / 2
    ]
    assert len(lists) <= LISTS_OF_RULES, lists


def test_a_docstring_begins_with_what_it_is_or_does(package: Package) -> None:
    lines = list(package.one_line_docstrings())
    odd = [each for each in lines if ODD_OPENING.match(each[1])]
    assert len(odd) <= SHARE_OF_ODD_OPENINGS * len(lines), odd


def test_the_architecture_is_drawn_as_it_is_held(repository: Path) -> None:
    config = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    held = [set(layer.split(" | ")) for layer in reversed(contract["layers"])]
    page = (repository / "docs" / "architecture.md").read_text("utf-8")
    assert [*layers_drawn(page, "Python"), {"__main__"}] == held
