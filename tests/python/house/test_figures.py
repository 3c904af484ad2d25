"""The figures that the ratchets hold are counted as they say."""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError
from pathlib import Path

import pytest

from house_figures import Package, circles, longest_chain, prose_of

Make = Callable[..., Package]


@pytest.fixture
def package(tmp_path: Path) -> Make:
    """Makes a package ``tdbg`` of sources by the names of their modules."""

    def make(**sources: str) -> Package:
        folder = tmp_path / "tdbg"
        for name, source in {"__init__": "", **sources}.items():
            path = folder.joinpath(*name.split("__", 1) if name[0] != "_" else [name])
            path = path.with_name(f"{path.name}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
            (path.parent / "__init__.py").touch()
        return Package(folder)

    return make


def test_a_circle_of_imports_is_found_where_it_closes(package: Make) -> None:
    lazily = "def f():\n    from tdbg import a\n"
    typed = "if TYPE_CHECKING:\n    from tdbg.a import A\n"
    found = package(
        a="import tdbg.b, tdbg.c, tdbg.d", b="import tdbg.c", c=lazily, d=typed
    )
    assert circles(found.graph()) == []
    assert circles(found.graph(lazy=True)) == [["tdbg.a", "tdbg.b", "tdbg.c"]]
    assert circles(found.graph(typing=True)) == [["tdbg.a", "tdbg.d"]]
    assert circles(found.graph(lazy=True, typing=True)) == [sorted(found.imports)[1:]]


def test_floors_are_counted_inside_of_a_package(package: Make) -> None:
    found = package(
        top="import tdbg.run.a",
        run__a="from tdbg.run import b",
        run__b="import tdbg.below\ndef f():\n    import tdbg.run.c\n",
        run__c="import tdbg.below",
        below="",
    )
    assert longest_chain(found.graph()) == 4
    assert found.floors("run") == 2
    assert found.packages() == ["run"]
    assert found.with_one_importer() == ["tdbg.run.a", "tdbg.run.b"]
    with pytest.raises(CycleError):
        longest_chain({"a": {"b"}, "b": {"a"}})


def test_a_function_is_measured_without_its_docstring(package: Make) -> None:
    source = '''
class A:
    @property
    def f(self):
        """One.

        Two.
        """
        if self:
            def g(x):
                return [y for y in x if y or x]
        return g
try:
    def h(): "Of one line."
except A:
    pass
'''
    found = {each.name: each for each in package(a=source).functions}
    assert list(found) == ["tdbg.a:A.f", "tdbg.a:A.f.g", "tdbg.a:h"]
    assert [each.lines for each in found.values()] == [5, 2, 0]
    assert [each.complexity for each in found.values()] == [4, 3, 1]


def test_names_of_classes_and_docstrings_of_one_line_are_found(package: Make) -> None:
    found = package(
        a='class A:\n    "Of one."\nclass _B: pass',
        b='class A:\n    """One.\n\n    More."""\nclass _B: pass',
        old__c="class A: pass",
    )
    assert found.public_classes(without="tdbg.old") == {"A": 2}
    assert list(found.one_line_docstrings()) == [("tdbg.a", "Of one.")]


def test_parts_of_an_object_are_seen_at_the_end_of_a_chain(package: Make) -> None:
    source = "self._session.policy.ask(); session.step; session.meter; policy.policy"
    found = package(hooks__a=source, capture__a=source)
    taken = found.parts_taken_of("session", {"policy", "meter"}, "hooks")
    assert taken == [
        "tdbg.hooks.a:1: session.meter",
        "tdbg.hooks.a:1: self._session.policy",
    ]


def test_words_are_counted_without_code_and_tables() -> None:
    page = "You see of\n| of | of |\n```\nof of\n```\nyour `of_it`, Of x y.\n"
    prose = prose_of(page)
    assert (prose.words, prose.of, prose.you) == (8, 250, 250)
