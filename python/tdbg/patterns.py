"""Regular expressions over names that take no longer than the name is long.

Python's ``re`` backtracks: ``(a+)+$`` takes 2^n steps on a name of n letters, and a
training would stand still.  Here an expression with repetitions becomes a finite
automaton, built as far as names need it, which looks at each letter once.  What no
automaton can do (look around, back references, word boundaries) is left to ``re``
where that is sure to be quick, and refused where it is not.

Thread safety: a pattern may be used from several threads; what they work out at once
they work out twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["NamePattern"]

# Of the automaton of one expression: states, and sets of states that are remembered.
MAX_STATES = 1000
MAX_SETS = 2000
# Steps of ``re``, where it is used: a few milliseconds.
MAX_STEPS = 1_000_000

_CHARACTERS = {
    _constants.LITERAL,
    _constants.NOT_LITERAL,
    _constants.ANY,
    _constants.IN,
}
_REPEATS = {
    _constants.MAX_REPEAT,
    _constants.MIN_REPEAT,
    _constants.POSSESSIVE_REPEAT,
}
_BEGINNINGS = {_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING}
_ENDS = {_constants.AT_END, _constants.AT_END_STRING}
_SUPPORTED_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL | re.VERBOSE | re.UNICODE


class NamePattern:
    r"""An expression that is searched for in names.

    Args:
        pattern: As ``re`` has it.  Of what is left to ``re``, only the beginning of
            a long name is looked at: 1,000 characters for one repetition.

    Attributes:
        pattern: As it was given.

    Raises:
        re.error: If it is no regular expression, or could take too long.
        TypeError: If it is no text.

    Example:
        >>> NamePattern(r"layer\d+").search("model.layer12.weight")
        True
    """

    __slots__ = ("_search", "pattern")

    def __init__(self, pattern: str) -> None:
        compiled = re.compile(pattern)
        given: object = pattern
        if not isinstance(given, str):
            msg = f"{given!r} is no text"
            raise TypeError(msg)
        self.pattern = pattern
        self._search: Callable[[str], bool]
        tree = _parser.parse(pattern)
        repeats = list(_repeats(tree))
        if not repeats:
            self._search = lambda name: compiled.search(name) is not None
            return
        try:
            self._search = _Automaton(tree).search
        except _UnsupportedError as error:
            longest = _longest(tree, repeats, error)
            self._search = lambda name: compiled.search(name[:longest]) is not None

    def __repr__(self) -> str:
        return f"NamePattern({self.pattern!r})"

    def search(self, name: str) -> bool:
        """Whether it is found somewhere in *name*."""
        return self._search(name)


class _UnsupportedError(Exception):
    """What an automaton cannot do."""


def _repeats(tree: Any) -> Iterator[Any]:
    """The bodies of all repetitions."""
    for operation, argument in tree:
        if operation in _REPEATS:
            yield argument[2]
        for part in _parts(argument):
            yield from _repeats(part)


def _parts(argument: Any) -> Iterator[Any]:
    """The expressions within what an operation is given."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _parts(each)


def _longest(tree: Any, repeats: list[Any], why: Exception) -> int:
    """How much of a name ``re`` can look at in so many steps.

    Repetitions of single characters, one after the other, take a power of the
    length; repetitions of anything else may take exponentially long.
    """
    simple = all(len(body) == 1 and body[0][0] in _CHARACTERS for body in repeats)
    if not simple:
        msg = f"{why} beside a repetition of more than one character can take for ever"
        raise re.error(msg)
    first = tree[0] if len(tree) else (None, None)
    anchored = first[0] is _constants.AT and first[1] in _BEGINNINGS
    power = len(repeats) + (not anchored)
    return int(MAX_STEPS ** (1.0 / power))


class _Automaton:
    """The states of an expression, and the sets of them that names lead to.

    A state is a test of a character, a choice, an anchor, or the end of all.
    """

    def __init__(self, tree: Any) -> None:
        if tree.state.flags & ~int(_SUPPORTED_FLAGS):
            msg = "a flag such as (?m)"
            raise _UnsupportedError(msg)
        self._state = tree.state
        self._tests: list[Callable[[str], Any] | None] = []
        self._next: list[list[int]] = []
        self._anchor: list[object] = []
        self._end = self._add()
        self._start = self._build(tree, self._end, tree.state.flags)
        first = self._closed([self._start], _BEGINNINGS)
        self._first = first
        self._always = self._closed([self._start], set())
        self._known: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def search(self, name: str) -> bool:
        current, end, known = self._first, self._end, self._known
        if end in current:
            return True
        for character in name:
            ways = known.get(current)
            if ways is None:
                if len(known) >= MAX_SETS:
                    known.clear()
                ways = known[current] = {}
            following = ways.get(character)
            if following is None:
                following = ways[character] = self._step(current, character)
            current = following
            if end in current:
                return True
        ends = _ENDS if name else _ENDS | _BEGINNINGS
        return end in self._closed(current, ends)

    def _step(self, current: frozenset[int], character: str) -> frozenset[int]:
        reached = []
        for state in current:
            test = self._tests[state]
            if test is not None and test(character):
                reached += self._next[state]
        return self._closed(reached, set()) | self._always

    def _closed(self, states: Iterable[int], holds: set[Any]) -> frozenset[int]:
        """These states and those that are reached from them without a character."""
        found: set[int] = set()
        ahead = list(states)
        while ahead:
            state = ahead.pop()
            if state in found:
                continue
            found.add(state)
            if self._tests[state] is None and (
                self._anchor[state] is None or self._anchor[state] in holds
            ):
                ahead += self._next[state]
        return frozenset(found)

    def _add(
        self,
        following: Iterable[int] = (),
        test: Callable[[str], Any] | None = None,
        anchor: object = None,
    ) -> int:
        if len(self._tests) >= MAX_STATES:
            msg = "it is too large"
            raise re.error(msg)
        self._tests.append(test)
        self._next.append(list(following))
        self._anchor.append(anchor)
        return len(self._tests) - 1

    def _build(self, tree: Any, following: int, flags: int) -> int:
        """The state from which *tree* leads to the one that follows."""
        for operation, argument in reversed(list(tree)):
            following = self._build_one(operation, argument, following, flags)
        return following

    def _build_one(
        self, operation: Any, argument: Any, following: int, flags: int
    ) -> int:
        if operation in _CHARACTERS:
            single = _parser.SubPattern(self._state, [(operation, argument)])
            test = _compiler.compile(single, flags).fullmatch
            return self._add([following], test)
        if operation is _constants.AT and argument in _BEGINNINGS | _ENDS:
            return self._add([following], anchor=argument)
        if operation is _constants.SUBPATTERN:
            _, added, removed, body = argument
            return self._build(body, following, (flags | added) & ~removed)
        if operation is _constants.BRANCH:
            return self._add(
                [self._build(each, following, flags) for each in argument[1]]
            )
        if operation in _REPEATS - {_constants.POSSESSIVE_REPEAT}:
            return self._repeat(argument, following, flags)
        msg = f"{str(operation).lower()}"
        raise _UnsupportedError(msg)

    def _repeat(self, argument: Any, following: int, flags: int) -> int:
        least, most, body = argument
        if most is _constants.MAXREPEAT:
            start = self._add()
            self._next[start] = [self._build(body, start, flags), following]
        else:
            start = following
            for _ in range(most - least):
                start = self._add([self._build(body, start, flags), following])
        for _ in range(least):
            start = self._build(body, start, flags)
        return start
