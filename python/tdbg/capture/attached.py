"""What somebody asks to be captured while the training runs, and for how long.

A request of type ``capture`` adds a collection of its own to those of the hook, or
needs of rules to its own, and they go again after as many steps of training as were
asked for; then all is as it was.  What was asked, by whom, and what became of it stands
in the run as events.

Thread safety: none; the training's thread.

Errors: a bad request is refused, with its reason in the run; nothing is raised.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tdbg.attach import CaptureRequest
from tdbg.capture.events import CHANGE, write_event
from tdbg.capture.recorder import Recorder
from tdbg.collections import Collection, CollectionRegistry, Role
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.control import Request
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.needs import Needs

__all__ = ["ACCEPTED", "ENDED", "REFUSED", "Attached"]

ACCEPTED, REFUSED, ENDED = "accepted", "refused", "ended"
# So many at once: each is looked at for each tensor.
MAX_ATTACHED = 8
# Stay as they are whatever is captured instead of the rest.
_ALWAYS = frozenset({"losses", "scalars"})


@dataclass(frozen=True, slots=True)
class _Entry:
    """One request that is in effect, until training step *until* begins."""

    request: str
    name: str
    until: int | None
    instead: bool
    needs: tuple[Needs, ...]


class Attached:
    """Captures for requests, beside what the hook captures.

    Args:
        registry: The collections of the hook.
        recorder: Writes the events.
    """

    def __init__(
        self,
        registry: CollectionRegistry,
        recorder: Recorder,
    ) -> None:
        self._registry = registry
        self._recorder = recorder
        self._entries: list[_Entry] = []
        self._n_taken = 0
        self._first = 0
        self._global_step = 0

    @property
    def is_active(self) -> bool:
        """Whether any request is in effect."""
        return bool(self._entries)

    def step_begins(self, first: int, global_step: int) -> None:
        """A forward begins.

        Args:
            first: Number of the first training step for which a request of now holds.
            global_step: The same, of all modes.
        """
        self._first, self._global_step = first, global_step
        for entry in self._entries[:]:
            if entry.until is not None and first >= entry.until:
                self._remove(entry, "as many steps as were asked for")

    def take(self, request: Request) -> None:
        """Do what was asked, or say why not."""
        try:
            asked = CaptureRequest.parse(request.body)
            if asked.end:
                self._end_all(request)
            else:
                self._add(request, asked)
        except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
            self._say(request.id, REFUSED, reason=str(error)[:1000])

    def _add(self, request: Request, asked: CaptureRequest) -> None:
        name = f"attached_{self._n_taken}"
        chooses = asked.collections or asked.regex
        collection = self._collection(name, asked) if chooses else None
        needs = asked.every_need()
        if len(self._entries) >= MAX_ATTACHED:
            msg = f"{MAX_ATTACHED} requests are in effect already; end them first"
            raise ConfigurationError(msg)
        self._n_taken += 1
        if collection is not None:
            self._registry.add(collection)
        until = None if asked.steps is None else self._first + asked.steps
        self._entries.append(_Entry(request.id, name, until, asked.instead, needs))
        self._narrow()
        self._say(
            request.id,
            ACCEPTED,
            training_step=self._first,
            until=until,
            collection=name,
            who=asked.who,
            asked={**dataclasses.asdict(asked), "who": None},
        )

    def _collection(self, name: str, asked: CaptureRequest) -> Collection:
        roles: frozenset[Role] = frozenset()
        patterns = list(asked.regex)
        names: set[str] = set()
        for each in asked.collections:
            found = self._registry.get(each)
            roles |= found.roles
            patterns += found.include_regex
            names |= found.tensor_names
        collection = Collection(
            name,
            patterns,
            save_config=_schedule(asked),
            reduction_config=ReductionConfig(save_raw_tensor=asked.raw),
        )
        collection.roles = roles
        collection.tensor_names = names
        collection.check()
        return collection

    def _end_all(self, request: Request) -> None:
        n_ended = len(self._entries)
        for entry in self._entries[:]:
            self._remove(entry, "somebody asked for it")
        self._say(request.id, ACCEPTED, training_step=self._first, n_ended=n_ended)

    def _remove(self, entry: _Entry, reason: str) -> None:
        self._entries.remove(entry)
        if entry.name in {item.name for item in self._registry}:
            self._registry.remove(entry.name)
        self._narrow()
        self._say(entry.request, ENDED, training_step=self._first, reason=reason)

    def _narrow(self) -> None:
        instead = any(entry.instead for entry in self._entries)
        names = _ALWAYS | {entry.name for entry in self._entries}
        self._registry.narrow(names if instead else None)
        needs = [need for entry in self._entries for need in entry.needs]
        self._recorder.policy.need(needs, instead=instead)

    def _say(self, request: str, state: str, **more: Any) -> None:
        content = {"what": "capture", "request": request, "state": state, **more}
        write_event(self._recorder, CHANGE, content, self._global_step)


def _schedule(asked: CaptureRequest) -> SaveConfig:
    config = SaveConfigMode(
        save_interval=asked.interval, statistics_interval=asked.interval
    )
    if asked.mode is None:
        return SaveConfig.parse(config)
    return SaveConfig({ModeKeys[asked.mode]: config}, end_step=0)
