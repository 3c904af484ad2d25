"""Find the numbers that a program keeps under a name: rewards, ends, advantages.

They are looked up where a backward pass begins: in the variables of the functions, in
the attributes of the objects there, and in batches that are tuples with names or
dictionaries.

Thread safety: reads only.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.hooks.pytorch.device.tensors import TYPES
from tdbg.hooks.pytorch.model.variables import namespaces

__all__ = [
    "REWARD",
    "ProgramNumbers",
    "are_alike",
    "as_numbers",
    "as_tensor",
    "discounted",
    "is_log_chance",
    "is_reward",
    "is_taken",
    "larger_of_two",
    "named",
    "numbers_in",
    "pairs_of_steps",
    "standardized",
]

# Numbers under one name, and names that are looked at, at most.
_MOST_NUMBERS, _MOST_NAMES = 65536, 4000
# Elements of a tensor that is taken as it is.
_MOST_ELEMENTS = 1 << 22
# What programs call observations, and those after a step.
_STATE = re.compile(
    r"(^|_)(s|o|st|obs|obses|state|states|observations?)(_|$|\d)", re.IGNORECASE
)
_NEXT = re.compile(r"(^|_)(next|new|future)(_|(?=obs|state)|$)", re.IGNORECASE)
_BEHIND = re.compile(r"(_?2|_|_?p|_?prime|_?tp1|_?next)$", re.IGNORECASE)
_SHORT = {"ns": "s", "no": "o", "nobs": "obs", "s1": "s", "s_t1": "s_t"}


def pairs_of_steps(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of observations, each with that of what comes a step later.

    Example:
        >>> list(pairs_of_steps({"obs": 1, "next_obs": 2, "s": 3, "s2": 4, "x2": 5}))
        [('obs', 'next_obs'), ('s', 's2')]
    """
    lower = {name.lower(): name for name in names}
    for name in names:
        key = name.lower()
        before = (
            _SHORT.get(key, ""),
            _NEXT.sub(lambda found: found[1], key, count=1).strip("_"),
            _BEHIND.sub("", key),
        )
        for each in before:
            if each != key and each in lower and _STATE.search(each):
                yield lower[each], name
                break


# What programs call rewards, the ends of episodes, and masks of what goes on.
REWARD = re.compile(r"(^|_)(r|rs|rew|rews|reward|rewards)($|_|\d)", re.IGNORECASE)
"""What programs call rewards, and more."""
_NO_REWARD = re.compile(
    r"total|sum|mean|avg|episode|running|best|thresh|scale|to_go|discount|cumul|last"
    r"|next|shap|intrinsic|curios|bonus|(^|_)(ep|int|intr)(_|$)|_(idx|ids?)$",
    re.IGNORECASE,
)
_END = re.compile(
    r"(^|_)(d|done|dones|terminals?|terminat\w*|ends?|ended|finished|game_?overs?"
    r"|is_?(done|terminal|last|end)|absorbing)($|_|\d)",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"not_?done|non_?(terminal|final)|continu|goes_on|(^|_)(alive|masks?)(_|$)|undone",
    re.IGNORECASE,
)
_CUT = re.compile(r"trunc|time_?(out|limit)|(^|_)next(_|$)", re.IGNORECASE)
_MASK = re.compile(r"^(\w*_)?masks?(_\w*)?$", re.IGNORECASE)
_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_VALUE = re.compile(
    r"(^|_)(v|vs|vals?|values?|baselines?|v_?preds?)(_|$)", re.IGNORECASE
)
# Modules whose constants are read, at most.
_MOST_MODULES = 8


def named(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield names and what they stand for, those of the innermost function first.

    Args:
        frame: Where to look, and outwards from there.
    """
    n_met = 0
    for names in namespaces(frame):
        for name, value in names.items():
            n_met += 1
            if n_met > _MOST_NAMES:
                return
            yield name, value
            yield from _members(value)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of a batch."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=False)
    elif type(value) is dict and len(value) <= 64:
        for name, each in value.items():
            if type(name) is str:
                yield name, each


def as_numbers(value: Any) -> NDArray[np.float64] | None:
    """Return tensors, arrays and lists of numbers as an array.

    None: it has no numbers, too many, or those of several ranks.
    """
    array: NDArray[np.float64] | None = None
    if isinstance(value, torch.Tensor):
        is_plain = type(value) in TYPES and value.layout is torch.strided
        is_plain &= not value.is_complex()
        if is_plain and 0 < value.numel() <= _MOST_NUMBERS:
            array = value.detach().double().cpu().numpy()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf" and 0 < value.size <= _MOST_NUMBERS:
            array = value.astype(np.float64)
    elif isinstance(value, list | tuple | deque) and _are_numbers(value):
        array = np.array([_plain(each) for each in value])
    return array


def _are_numbers(values: list[Any] | tuple[Any, ...] | deque[Any]) -> bool:
    if not 0 < len(values) <= _MOST_NUMBERS or not _is_number(values[0]):
        return False
    return all(map(_is_number, values))


def _plain(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray):
        return _size_of(value) == 1
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _size_of(value: Any) -> int:
    """Return how many numbers a tensor or an array has."""
    return int(value.numel() if isinstance(value, torch.Tensor) else value.size)


def as_tensor(value: Any) -> torch.Tensor | None:
    """Return numbers as a tensor on the processor, or nothing."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value) if value.flags.writeable and value.size else None
    if type(value) not in TYPES or value.layout is not torch.strided or not value.dim():
        return None
    if not 0 < value.numel() <= _MOST_ELEMENTS:
        return None
    return value.detach().cpu()  # type: ignore[no-any-return]


def discounted(reward: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return the rewards up to each step, each discounted by a share a step."""
    total, found = 0.0, []
    for each in reward:
        total = float(each) + share * total
        found.append(total)
    return np.array(found)


def standardized(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers with a mean of 0 and a length of 1."""
    shifted: NDArray[np.float64] = numbers - numbers.mean()
    size = float(np.sqrt(shifted @ shifted))
    return shifted / size if size > 0 else shifted


# ---- by what names say ---------------------------------------------------------------


class ProgramNumbers(NamedTuple):
    """The numbers of a program, each with its name.

    Attributes:
        every: All numbers.
        rewards: Rewards.
        ends: Ones where episodes end, and zeros elsewhere.
        masks: The same, if their names say little.
        discounts: Numbers that are called discounts.
        limits: The largest numbers of steps of episodes, by their environments.
        steps: Observations and those a step later, as they are, with their names.
    """

    every: list[tuple[str, NDArray[np.float64]]]
    rewards: list[tuple[str, NDArray[np.float64]]]
    ends: list[tuple[str, NDArray[np.float64]]]
    masks: list[tuple[str, NDArray[np.float64]]]
    discounts: list[float]
    limits: set[int]
    steps: list[tuple[str, str, Any, Any]]

    def note_setting(self, name: str, value: Any) -> None:
        """Note a discount, or an environment with a limit."""
        if type(value) is float and _DISCOUNT.search(name):
            self.discounts.append(value)
        elif type(value).__module__.partition(".")[0] in {"gym", "gymnasium"}:
            spec = getattr(value, "spec", None)
            limit = getattr(spec, "max_episode_steps", None)
            self.limits.update({limit} if isinstance(limit, int) else ())

    def note_numbers(self, name: str, numbers: NDArray[np.float64]) -> None:
        """Note numbers by what their name says."""
        self.every.append((name, numbers))
        if is_reward(name):
            self.rewards.append((name, numbers))
        goes_on = bool(_GOES_ON.search(name))
        is_end = (goes_on or _END.search(name)) and not _CUT.search(name)
        if is_end and np.isin(numbers, (0.0, 1.0)).all():
            found = self.masks if _MASK.search(name) else self.ends
            found.append((name, 1.0 - numbers if goes_on else numbers))

    def values_beside(self, reward: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return two arrays of values of the states in which rewards were given."""
        return [
            each[: len(reward)]
            for name, each in self.every
            if _VALUE.search(name)
            and each.ndim == reward.ndim
            and each.shape[1:] == reward.shape[1:]
            and len(each) - len(reward) in {0, 1}
        ][:2]


def is_reward(name: str) -> bool:
    """Return whether a name is that of the rewards of steps."""
    return bool(REWARD.search(name)) and not _NO_REWARD.search(name)


def numbers_in(frame: Any) -> ProgramNumbers:
    """Return the numbers of a program that has rewards; else its discounts only."""
    names = ProgramNumbers([], [], [], [], list(_discounts(frame)), set(), [])
    pairs, seen = list(named(frame)), set[int]()
    if not any(is_reward(name) for name, _ in pairs):
        return names  # Reading all numbers takes time.
    for name, value in pairs:
        if id(value) in seen:
            continue
        numbers = as_numbers(value)
        if numbers is None or numbers.size < 2:
            names.note_setting(name, value)
        else:
            seen.add(id(value))
            names.note_numbers(name, numbers)
    first = dict(reversed(pairs))  # The innermost, of several with one name.
    for name, later in pairs_of_steps(first):
        names.steps.append((name, later, first[name], first[later]))
    return names


def _discounts(frame: FrameType | None) -> Iterator[float]:
    """Yield the discounts among the constants of the program's modules."""
    seen = set[int]()
    while frame is not None and len(seen) < _MOST_MODULES:
        names = frame.f_globals
        package = str(names.get("__name__")).partition(".")[0]
        if id(names) not in seen and package not in {"numpy", "tdbg", "torch"}:
            seen.add(id(names))
            for name, value in list(names.items()):
                if type(value) is float and _DISCOUNT.search(name):
                    yield value
        frame = frame.f_back


# ---- actions, chances and critics ----------------------------------------------------

_ACTION = re.compile(r"(^|_)(a|act|acts|action|actions)(_|$|\d)", re.IGNORECASE)
_NO_ACTION = re.compile(
    r"next|best|greedy|target|prob|(^|_)(n|num|new|log|logp|dim|pi)(_|$)|mask|space",
    re.IGNORECASE,
)
_CHANCE = re.compile(r"log_?p(rob|i)?s?(_|$)", re.IGNORECASE)
# Steps at which critics differ, at least, and of all; a discount; and rounding.
_LEAST_APART, _LEAST_SHARE, _ROUNDED = (8, 0.25), 0.5, 1e-5
# The digit or letter that tells two critics apart.
_WHICH = re.compile(r"1|(?<=_)a(?=_|$)")


def is_taken(name: str) -> bool:
    """Return whether a name is that of actions that somebody has taken.

    Args:
        name: Of a variable.

    Example:
        >>> is_taken("batch_actions"), is_taken("next_actions")
        (True, False)
    """
    return _ACTION.search(name) is not None and _NO_ACTION.search(name) is None


def is_log_chance(name: str) -> bool:
    """Return whether a name is that of logarithms of chances.

    Args:
        name: Of a variable.
    """
    return _CHANCE.search(name) is not None


def larger_of_two(beyond: NDArray[np.float64], names: ProgramNumbers) -> str:
    """Return the name of values of two critics of which a target takes the larger.

    Args:
        beyond: Targets less their rewards.
        names: The numbers of the program.

    Returns:
        A name; "": targets take something else.
    """
    n, known = beyond.size, dict[str, NDArray[np.float64]]()
    for name, each in names.every:
        if each.size == n:
            known.setdefault(name, each.reshape(-1))
    chances = [None, *(each for name, each in known.items() if is_log_chance(name))]
    for name, one in known.items():
        other = next(
            (
                known[twin]
                for found in _WHICH.finditer(name)
                if (twin := _twin(name, found)) in known
            ),
            None,
        )
        if other is None:
            continue
        apart = np.abs(one - other) > _ROUNDED * float(np.abs(one).max() + 1e-6)
        counts = np.abs(beyond) > 0
        if (apart & counts).sum() < max(_LEAST_APART[0], _LEAST_APART[1] * n):
            continue
        for chance in chances[:3]:
            larger, smaller = np.maximum(one, other), np.minimum(one, other)
            if _explains(beyond, larger, chance, counts) and not _explains(
                beyond, smaller, chance, counts
            ):
                return name
    return ""


def _twin(name: str, found: re.Match[str]) -> str:
    other = {"1": "2", "a": "b"}[found[0]]
    return name[: found.start()] + other + name[found.end() :]


def _explains(
    beyond: NDArray[np.float64],
    values: NDArray[np.float64],
    chance: NDArray[np.float64] | None,
    counts: NDArray[np.bool_],
) -> bool:
    """Return whether a share of values, and of logarithms, is what targets look to."""
    parts = np.stack([values] if chance is None else [values, chance], axis=1)[counts]
    shares, *_ = np.linalg.lstsq(parts, beyond[counts], rcond=None)
    if not _LEAST_SHARE <= float(shares[0]) <= 1.0 + _ROUNDED:
        return False
    return are_alike(parts @ shares, beyond[counts])


def are_alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether arrays of one shape are equal to rounding of 32-bit floats."""
    size = float(max(np.abs(one).max(), np.abs(other).max(), 1e-6))
    return bool(np.abs(one - other).max() <= 2 * _ROUNDED * size)
