"""The settings of a launch: what ``tdbg run`` was told, for the hooks of the program.

Its options are arguments of a hook: they win against variables and against the file,
and where they say nothing, those do (docs/configuration.md).

Thread safety: functions of the training's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tdbg.capture.hook_base import HookBase
from tdbg.config import Collection, HookConfig, ReductionConfig, SaveConfig, resolve
from tdbg.config.options import AUTO
from tdbg.config.profiler import VARIABLE, ProfilerConfig
from tdbg.errors import ConfigurationError
from tdbg.launch.family import Place, family_of

__all__ = ["arguments_of", "include", "is_profiled", "open_hook"]


def arguments_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a hook for a launch; None: nobody has said.

    Args:
        settings: Those of the launch: ``rules``, ``include_collections``,
            ``save_interval``, ``statistics_interval``, ``budget``, ``profiler``; all
            may be missing.
    """
    return {
        "rules": settings.get("rules"),
        "save_config": _schedule(settings, values=not _included(settings)),
        "budget": settings.get("budget"),
        "profiler": settings.get("profiler"),
    }


def include(hook: HookBase, settings: Mapping[str, Any]) -> None:
    """Capture the further collections of a launch, with their values if it says when.

    Args:
        hook: The hook, which has been opened.
        settings: As of ``arguments_of``.
    """
    for name in _included(settings):
        collection: Collection = hook.get_collection(name)
        if settings.get("save_interval") is not None:
            collection.save_config = _schedule(settings, values=True)
            collection.reduction_config = ReductionConfig(save_raw_tensor=True)
        hook.add_collection(collection)


def is_profiled(settings: Mapping[str, Any]) -> bool:
    """Return whether what happens before the first training is measured, too.

    Args:
        settings: As of ``arguments_of``.
    """
    given = settings.get("profiler") or os.environ.get(VARIABLE) or True
    try:
        return ProfilerConfig.of(given).enabled
    except ConfigurationError:  # The hook reports it.
        return False


class _HookClass(Protocol):
    """The class of a framework's hook."""

    def _made(self, make_config: Any) -> Any: ...


def open_hook(
    make: _HookClass,
    settings: Mapping[str, Any],
    collections: Iterable[str],
    *,
    is_first: bool,
) -> tuple[Any, Place]:
    """Open the hook of the next training of this launch, for a framework's callbacks.

    Args:
        make: The framework's ``Hook``.
        settings: As of ``arguments_of``, with ``out_dir`` and ``existing``.
        collections: Captured beside those, and beside what the rules need.
        is_first: Whether this is the program that was launched.

    Returns:
        The hook, and where its run is.

    Raises:
        ConfigurationError: If the settings can never work.
        OSError: If the directory cannot be made.
    """
    path = family_of(settings).claim(may_join=is_first)
    given = {"out_dir": path, **arguments_of(settings)}

    def make_config() -> HookConfig:
        return resolve(given, _defaults(collections))

    hook = make._made(make_config)
    include(hook, settings)
    return hook, path


def _defaults(collections: Iterable[str]) -> dict[str, Any]:
    from tdbg.rules import default_rules

    return {
        "include_collections": tuple(collections),
        "rules": default_rules(),
        "budget": AUTO,
    }


def _included(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(settings.get("include_collections") or ())


def _schedule(settings: Mapping[str, Any], *, values: bool) -> SaveConfig | None:
    """Return the schedule that a launch was told; None: none.

    Args:
        settings: As of ``arguments_of``.
        values: Whether it says when values are saved.
    """
    names = ["statistics_interval", *(["save_interval"] if values else [])]
    given = {name: settings[name] for name in names if settings.get(name) is not None}
    return SaveConfig(**given) if given else None
