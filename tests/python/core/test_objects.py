"""Objects are chosen by their types, and by nothing else."""

from __future__ import annotations

from typing import Any

from tdbg import _core


class Proxy:
    """Pretends to be an integer."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError


class Number(int):
    """A class that was not asked for."""


def test_objects_are_those_of_these_types_in_their_order() -> None:
    proxy, number = Proxy(), Number(3)
    objects: list[Any] = [1, "a", proxy, 2.0, number, "b", [], 1]
    assert _core.instances_of(objects, {str, int}) == [1, "a", "b", 1]
    assert _core.instances_of(objects, {Proxy}) == [proxy]
    assert _core.instances_of(objects, set()) == []
    assert _core.instances_of([], {int}) == []
    assert _core.instances_of(objects * 50, {Number}) == [number] * 50
