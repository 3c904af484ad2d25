"""The part of ``tdbg._core`` that counts steps.

No module of its own: cpp/bindings/bind_step_counter.cc.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, final

class StepCounter:
    """Counts steps that repeat one: cpp/python_capture/step_counter.h."""

    def __init__(self) -> None: ...
    def begin(
        self,
        events: tuple[object, ...],
        most: int,
        until_ns: int,
        first_noted: int = 0,
        noted_every: int = 0,
    ) -> None:
        """Count steps of these events, compared by identity; they must stay alive.

        Numbers of the step *first_noted* from now, and of each *noted_every* steps
        after it (0: of none), are noted by whoever reports events.
        """

    def end(self) -> tuple[int, int, int]:
        """Count no longer: steps that are over, their duration in nanoseconds, and
        events of the one under way."""

    @property
    def is_over(self) -> bool:
        """Whether as many steps were counted, or as much time has passed, as may."""

    @property
    def is_noted(self) -> bool:
        """Whether numbers of the step under way are noted."""

    @property
    def is_quiet(self) -> bool:
        """Whether a step is under way of which nothing is noted."""

    @property
    def n(self) -> int:
        """Steps that were counted, and are over."""

    @property
    def index(self) -> int:
        """Events of the step under way."""

    @property
    def duration_ns(self) -> int: ...
    @property
    def depth(self) -> int:
        """Calls of modules under way in a step that is counted."""

    @property
    def n_events(self) -> int:
        """All that were ever counted."""

@final
class CountedHook:
    """Stands in for a hook; its class and its attributes are those of the hook.

    *kind* is a word, such as "forward_begins": cpp/python_capture/counted_hook.h has
    them all.  An unknown one raises ValueError.
    """

    def __new__(
        cls, kind: str, counter: StepCounter, event: object, hook: Callable[..., Any],
        backward_id: Callable[[], int], references: tuple[weakref.ref[Any], ...],
        asks: Callable[[Any], bool] | None, /,
    ) -> CountedHook: ...  # fmt: skip
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @property
    def stands_for(self) -> Any:
        """The hook."""

@final
class CountedCall:
    """A function whose calls are followed, but in steps that are only counted.

    Calls *followed* in the place of *function*, or that if ``counter.is_quiet``.
    """

    counter: StepCounter | None
    def __new__(
        cls, function: Callable[..., Any], followed: Callable[..., Any], /
    ) -> CountedCall: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
