"""Asks a running training to capture something else for a while.

    from tdbg.attach import request_capture

    request_capture("runs/digits", collections=["outputs"], interval=5, steps=200)
    request_capture("runs/digits", needs=tdbg.rules.needs_of("default"))

The training takes it at its next forward, all its ranks at one step, and says in
the run what it made of it: an event ``change`` whose ``what`` is ``capture``.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tdbg.config import nearest
from tdbg.control import Request, write_request
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.patterns import NamePattern

__all__ = ["CaptureRequest", "request_capture"]

MAX_NAMES = 64
MAX_LENGTH = 256
MAX_NUMBER = 1 << 40
MAX_NEEDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What is to be captured, beside or instead of what is.

    Args:
        collections: Names of collections of the training's hook.
        regex: Further tensors, by expressions that their names match.
        interval: Every so many steps.
        steps: For so many steps of training; None: until it ends, or the request is
            ended.
        raw: Values as well, not only statistics.
        mode: Only in steps of that mode.
        instead: Of all else but losses and scalars, which goes on afterwards.
        end: End all that was asked for before, and begin nothing.
        needs: What rules need, each as ``dataclasses.asdict`` has it but with lists
            of names: captured as for ``Hook(rules=)``, whatever the interval, the
            mode and raw say here.
        who: Asks, in one sentence.

    Raises:
        ConfigurationError: If it can never work, or could take the training's time.
    """

    collections: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    interval: int = 1
    steps: int | None = None
    raw: bool = False
    mode: str | None = None
    instead: bool = False
    end: bool = False
    needs: tuple[Mapping[str, Any], ...] = ()
    who: str = ""

    def __post_init__(self) -> None:
        for name in ("collections", "regex"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for pattern in self.regex:
            _check_regex(pattern)
        _check_number("interval", self.interval)
        if self.steps is not None:
            _check_number("steps", self.steps)
        for name in ("raw", "instead", "end"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                msg = f"{name} must be true or false, not {_short(value)}"
                raise ConfigurationError(msg)
        modes = ModeKeys.__members__
        mode: object = self.mode
        if mode is not None and not (isinstance(mode, str) and mode in modes):
            msg = f"mode: unknown {_short(mode)}; {nearest(mode, modes)}"
            raise ConfigurationError(msg)
        object.__setattr__(self, "who", str(self.who)[:MAX_LENGTH])
        object.__setattr__(self, "needs", _needs(self.needs))
        if self.needs and not (self.collections or self.regex):
            if self.raw or self.mode is not None:
                msg = (
                    "raw and mode are of collections and names: rules have what they "
                    "need captured, as they need it"
                )
                raise ConfigurationError(msg)
        elif not (self.end or self.collections or self.regex):
            msg = "nothing is asked for: name a collection, a regex or rules"
            raise ConfigurationError(msg)

    def every_need(self) -> tuple[Needs, ...]:
        """What rules need."""
        return tuple(_need(each) for each in self.needs)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """From the body of a request.

        Raises:
            ConfigurationError: If it is none.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for key in body:
            if key not in known:
                msg = f"unknown setting {_short(key)}; {nearest(key, known)}"
                raise ConfigurationError(msg)
        return cls(**body)


def request_capture(
    run_directory: str | os.PathLike[str],
    *,
    collections: Iterable[str] = (),
    regex: Iterable[str] = (),
    interval: int = 1,
    steps: int | None = None,
    raw: bool = False,
    mode: ModeKeys | str | None = None,
    instead: bool = False,
    end: bool = False,
    needs: Iterable[Needs] = (),
) -> Request:
    """Ask the training that writes to this run to capture this as well, for a while.

    Args:
        run_directory: The run.
        collections: As of ``CaptureRequest``, like all below.
        regex: Expressions on names.
        interval: Every so many steps.
        steps: For so many steps of training.
        raw: Values as well.
        mode: Only in that mode.
        instead: Of all else.
        end: End what was asked for before.
        needs: What rules need: ``tdbg.rules.needs_of("default")``.

    Returns:
        The request; its ``id`` is in the events that say what became of it.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If it can never work, no training has written in it yet,
            or another user owns it.
        StorageError: If the request cannot be written.
    """
    asked = CaptureRequest(
        collections=_names("collections", collections),
        regex=_names("regex", regex),
        interval=interval,
        steps=steps,
        raw=raw,
        mode=mode.name if isinstance(mode, ModeKeys) else mode,
        instead=instead,
        end=end,
        needs=tuple(_to_json(need) for need in needs),
        who=f"{_user()}@{socket.gethostname()}",
    )
    return write_request(run_directory, "capture", dataclasses.asdict(asked))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _names(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"{name} must be a list of texts, not {_short(given)}"
        raise ConfigurationError(msg)
    values = tuple(given)
    if len(values) > MAX_NAMES:
        msg = f"{name}: at most {MAX_NAMES}, not {len(values)}"
        raise ConfigurationError(msg)
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_LENGTH:
            msg = f"{name}: {_short(value)} is no text of at most {MAX_LENGTH}"
            raise ConfigurationError(msg)
    return values


def _check_number(name: str, value: object, *, least: int = 1) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not least <= value <= MAX_NUMBER:  # type: ignore[operator]
        msg = f"{name} must be a number of steps, not {_short(value)}"
        raise ConfigurationError(msg)


def _check_regex(pattern: str) -> None:
    """Refuse what is no expression, and what could match for longer than a step."""
    try:
        NamePattern(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        msg = f"regex: {_short(pattern)} is no regular expression: {error}"
        raise ConfigurationError(msg) from error


def _to_json(need: Needs) -> dict[str, Any]:
    sets = {"collections": sorted(need.collections), "modules": sorted(need.modules)}
    return {**dataclasses.asdict(need), **sets}


def _needs(given: object) -> tuple[Mapping[str, Any], ...]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        msg = f"needs must be a list of needs, not {_short(given)}"
        raise ConfigurationError(msg)
    found = tuple(given)
    if len(found) > MAX_NEEDS:
        msg = f"needs: at most {MAX_NEEDS}, not {len(found)}"
        raise ConfigurationError(msg)
    for each in found:
        _need(each)
    return found


def _need(given: object) -> Needs:
    """One need, of what anybody may have written.

    Raises:
        ConfigurationError: If it is none.
    """
    if not isinstance(given, Mapping):
        msg = f"needs: {_short(given)} is no need of a rule"
        raise ConfigurationError(msg)
    known = {item.name: item.default for item in dataclasses.fields(Needs)}
    for name, value in given.items():
        if name not in known:
            msg = f"needs: unknown setting {_short(name)}; {nearest(name, known)}"
            raise ConfigurationError(msg)
        if name in ("collections", "modules"):
            _names(name, value)
        elif isinstance(known[name], bool):
            if not isinstance(value, bool):
                msg = f"needs: {name} must be true or false, not {_short(value)}"
                raise ConfigurationError(msg)
        elif value is not None or known[name] is not None:
            _check_number(name, value, least=0 if name == "raw_limit" else 1)
    return Needs(**given)


def _short(value: object) -> str:
    return repr(value)[:100]
