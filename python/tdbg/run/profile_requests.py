"""Requests to a running training for a window of its profiler, or for other settings.

They are requests of the types ``profile`` and ``profiler`` (docs/format.md,
"Requests").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tdbg.config.messages import check_flag, check_known
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.errors import ConfigurationError
from tdbg.run.requests import MAX_LENGTH, Asked, Request, asker, write_request

__all__ = ["PROFILE", "SETTINGS", "ProfileRequest", "request_profile"]

PROFILE = "profile"
"""The type of a request for a window."""
SETTINGS = "profiler"
"""The type of a request for other settings."""
# The rest of a reason is not kept.
_MOST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """A window, or settings of the profiler to change; one of the two.

    Args:
        window: When the window begins, how long it is and what it takes.
        settings: Settings by their names: those of ``config.profiler.CHANGEABLE``.
        over_budget: Whether to open the window even if the budget for windows is used
            up.
        reason: Why somebody asks, in one sentence; may be empty.
        who: The user who asks, as ``user@host``.

    Raises:
        ConfigurationError: If the request can never work.
    """

    window: WindowConfig | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    over_budget: bool = False
    reason: str = ""
    who: str = ""

    def __post_init__(self) -> None:
        if (self.window is None) == (not self.settings):
            msg = "ask for a window, or for settings to change: one of the two"
            raise ConfigurationError(msg)
        if self.settings:
            ProfilerConfig().changed(self.settings)
        check_flag("over_budget", self.over_budget)
        object.__setattr__(self, "reason", str(self.reason)[:_MOST_REASON])
        object.__setattr__(self, "who", str(self.who)[:MAX_LENGTH])

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Parse the body of a request.

        Raises:
            ConfigurationError: If the body is not that of a request of this type.
        """
        check_known(body, [item.name for item in dataclasses.fields(cls)])
        given = dict(body)
        window = given.pop("window", None)
        if window is not None:
            if not isinstance(window, Mapping):
                msg = "window must be a mapping of settings"
                raise ConfigurationError(msg)
            window = WindowConfig.parse(window)
        return cls(window=window, **given)


def request_profile(
    run_directory: Asked,
    *,
    window: WindowConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    over_budget: bool = False,
    reason: str = "",
) -> Request:
    """Ask the training that writes to this run for a window, or for other settings.

    Args:
        run_directory: The run.
        window: See ``ProfileRequest``, as for all arguments below.
        settings: Settings by their names.
        over_budget: Whether the budget for windows does not matter.
        reason: Why you ask.

    Returns:
        The request.  The run's events about it have its ``id``.

    Raises:
        NotARun: If the directory is no run.
        ConfigurationError: If the request can never work, no training has written to
            the run yet, or another user owns it.
        StorageError: If the request cannot be written.
    """
    asked = ProfileRequest(
        window=window,
        settings=dict(settings or {}),
        over_budget=over_budget,
        reason=reason,
        who=asker(),
    )
    body = {
        "window": None if window is None else window.to_json(),
        "settings": dict(asked.settings),
        "over_budget": asked.over_budget,
        "reason": asked.reason,
        "who": asked.who,
    }
    return write_request(run_directory, PROFILE if window else SETTINGS, body)
