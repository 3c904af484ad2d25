"""Which tensor of one run is compared with which of the other.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tdbg.compare.execution import PARAMETERS, role_named
from tdbg.compare.layouts import layout_between
from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import ConfigurationError, QueryError, StorageError
from tdbg.trial import TensorDescription, Trial

__all__ = ["MissingName", "NameMap", "Paired", "names_of", "pair", "read_map"]

ARROW = "->"
# Names that are alike in less than this share are no renames.
ALIKE = 0.5
# A search for renames takes the product of the numbers of names.
MOST_SEARCHED = 2000


@dataclass(frozen=True, slots=True)
class MissingName:
    """A tensor that only one of two runs has.

    Attributes:
        name: Its name.
        role: Its role.
        run: 0 if only the first run has it, 1 if only the second.
        hint: The name that it may have in the other run; empty if none is alike.
    """

    name: str
    role: str
    run: int
    hint: str


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """The tensors and scalars of two runs by name.

    Attributes:
        names: What both have, as the first run names it, with the second's name.
        described: What they are in each run, by the first run's name.
        missing: What only one of them has.
    """

    names: Mapping[str, str]
    described: tuple[Mapping[str, TensorDescription], Mapping[str, TensorDescription]]
    missing: tuple[MissingName, ...]

    @property
    def are_transposed(self) -> bool:
        """Whether weights of one run are transposed in the other, as shapes show."""
        shapes = (
            tuple(each[name].shape or () for each in self.described)
            for name in self.names
            if role_named(self.described[0][name].role) in PARAMETERS
        )
        layouts = (layout_between(one, other) for one, other in shapes)
        return any(each is not None and each.is_transposed for each in layouts)


@dataclass(frozen=True, slots=True)
class NameMap:
    """Turns the names of the first run into those of the second.

    Attributes:
        rules: Expressions and replacements, as of ``re.sub``; each is applied to what
            the ones before it have made.
    """

    rules: tuple[tuple[re.Pattern[str], str], ...] = ()

    def __call__(self, name: str) -> str:
        """Return what the second run calls a tensor of the first."""
        for expression, replacement in self.rules:
            name = expression.sub(replacement, name)
        return name

    def check(self, names: Iterable[str]) -> None:
        """Refuse a rule that matches nothing.

        Raises:
            ConfigurationError: If there is one.
        """
        current = list(names)
        for expression, replacement in self.rules:
            if not any(expression.search(name) for name in current):
                some = ", ".join(current[:5])
                msg = (
                    f"the name map's {expression.pattern!r} matches no name of the "
                    f"first run, such as {some}"
                )
                raise ConfigurationError(msg)
            current = [expression.sub(replacement, name) for name in current]


def read_map(
    given: str | os.PathLike[str] | Iterable[str] | Mapping[str, str],
) -> NameMap:
    r"""Make a map of names.

    Args:
        given: A rule ``EXPRESSION -> REPLACEMENT``, or several; a file with one rule a
            line, in which empty lines and those that begin with ``#`` say nothing; or
            replacements by expression.

    Raises:
        ConfigurationError: If a rule is none.
        StorageError: If the file cannot be read.

    Example:
        >>> read_map(r"blocks\.(\d+) -> h.\1")("gradient/blocks.0.fc.weight")
        'gradient/h.0.fc.weight'
    """
    if isinstance(given, Mapping):
        return NameMap(tuple(_compiled(a, b) for a, b in given.items()))
    if isinstance(given, str | os.PathLike):
        given = [os.fspath(given)]
    lines: list[str] = []
    for each in given:
        lines += [each] if ARROW in each else _lines_of(Path(each))
    return NameMap(tuple(_rule(line) for line in lines))


def _lines_of(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except FileNotFoundError:
        msg = (
            f"{str(path)!r} is neither a file nor a rule EXPRESSION {ARROW} REPLACEMENT"
        )
        raise ConfigurationError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, OSError) else OSError(0, str(error))
        raise StorageError.of(reason, "read", path) from error
    return [line for line in lines if line and not line.startswith("#")]


def _rule(line: str) -> tuple[re.Pattern[str], str]:
    expression, arrow, replacement = line.partition(ARROW)
    if not arrow or not expression.strip():
        msg = f"a rule of a name map is EXPRESSION {ARROW} REPLACEMENT, not {line!r}"
        raise ConfigurationError(msg)
    return _compiled(expression.strip(), replacement.strip())


def _compiled(expression: str, replacement: str) -> tuple[re.Pattern[str], str]:
    try:
        compiled = re.compile(expression)
        # Refuses a replacement that names a group that is not there.
        re.compile(f"(?:{expression})|").sub(replacement, "")
    except (re.error, IndexError) as error:
        msg = f"the name map's {expression!r} {ARROW} {replacement!r}: {error}"
        raise ConfigurationError(msg) from error
    return compiled, replacement


def names_of(trial: Trial, regex: Sequence[str] = ()) -> list[str]:
    """Return the tensors and scalars of a run that can be compared."""
    return trial.tensor_names(regex=list(regex) or None)


def pair(
    first: Trial, second: Trial, name_map: NameMap, regex: Sequence[str] = ()
) -> Paired:
    """Pair the tensors of two runs by name.

    Args:
        first: A run.
        second: Another one.
        name_map: What turns the first run's names into the second's.
        regex: Only tensors of the first run with such names.

    Raises:
        QueryError: If no tensor of one has the name of one of the other, or an
            expression matches none.
        ConfigurationError: If a rule of the map matches nothing, or it gives two
            tensors one name.
    """
    names = names_of(first, regex)
    if regex and not names:
        said = " or ".join(map(repr, regex))
        msg = (
            f"no tensor of {first.name} matches {said}; "
            f"{nearest_recorded(regex[0], set(names_of(first)))}"
        )
        raise QueryError(msg)
    name_map.check(names_of(first))
    known = set(names_of(second))
    turned = {name: name_map(name) for name in names}
    _check_unique(turned, known)
    both = {name: other for name, other in turned.items() if other in known}
    if names and not both:
        raise _nothing_shared(first, second, turned, known)
    lacking = [name for name in names if name not in both]
    new = [] if regex else sorted(known - set(both.values()))
    described = (
        {each.name: each for each in first.describe(names)},
        {each.name: each for each in second.describe([*both.values(), *new])},
    )
    missing = _missing(
        [described[0][n] for n in lacking], [described[1][n] for n in new]
    )
    of_second = {name: described[1][other] for name, other in both.items()}
    return Paired(both, (described[0], of_second), tuple(missing))


def _check_unique(turned: Mapping[str, str], known: set[str]) -> None:
    seen: dict[str, str] = {}
    for name, other in turned.items():
        if other in known and other in seen:
            msg = f"the name map gives {seen[other]!r} and {name!r} one name, {other!r}"
            raise ConfigurationError(msg)
        seen[other] = name


def _nothing_shared(
    first: Trial, second: Trial, turned: Mapping[str, str], known: set[str]
) -> QueryError:
    example = next(iter(turned.values()))
    msg = (
        f"no tensor of {first.name} has the name of one of {second.name}: there is no "
        f"{short(example)} there; {nearest_recorded(example, known)}; a name map "
        f"(EXPRESSION {ARROW} REPLACEMENT) turns the first's names into the second's"
    )
    return QueryError(msg)


def _missing(
    lacking: Sequence[TensorDescription], new: Sequence[TensorDescription]
) -> list[MissingName]:
    found = []
    for run, ours, others in ((0, lacking, new), (1, new, lacking)):
        free = list(others)
        for each in ours:
            hint = (
                _alike(each, free) if len(ours) * len(others) < MOST_SEARCHED**2 else ""
            )
            found.append(MissingName(each.name, each.role, run, hint))
    return found


def _alike(tensor: TensorDescription, others: Sequence[TensorDescription]) -> str:
    """The other tensor of the same role and extents whose name is most alike."""
    matcher = difflib.SequenceMatcher(b=tensor.name, autojunk=False)
    best, name = ALIKE, ""
    for each in others:
        if each.role != tensor.role or not _has_extents_of(each, tensor):
            continue
        matcher.set_seq1(each.name)
        if matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, name = ratio, each.name
    return name


def _has_extents_of(one: TensorDescription, other: TensorDescription) -> bool:
    if role_named(one.role) not in PARAMETERS and (
        one.shape is None or not other.shape
    ):
        return True
    return sorted(one.shape or ()) == sorted(other.shape or ())
