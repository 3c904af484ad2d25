"""``HookConfig``: all settings of a hook as one value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdbg.config.collections import (
    BUILT_IN,
    Collection,
    CollectionKeys,
    CollectionRegistry,
)
from tdbg.config.documents import Located
from tdbg.config.messages import check_flag, nearest
from tdbg.config.options import SessionOptions, parse_workers
from tdbg.config.patterns import NamePattern
from tdbg.config.profiler import ProfilerConfig
from tdbg.config.retention import Retention
from tdbg.config.schedules import ReductionConfig, SaveConfig
from tdbg.config.text_settings import CollectionConfig
from tdbg.errors import ConfigurationError

__all__ = ["HookConfig"]

_BOOLEANS = ("save_all", "export_tensorboard", "save_histogram", "dry_run")
_SESSION_FIELDS = (
    "on_stop",
    "overflow",
    "queue_bytes",
    "min_free_bytes",
    "spool_bytes",
    "codec",
    "retention",
    "precise",
    "budget",
    "dry_run",
    "probes",
)
_MOST_RANKS = 1 << 31
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """The settings of a hook: what its constructor, a file and the environment make.

    Every setting has the name of the constructor's argument, is described there
    (``tdbg.pytorch.Hook``), and is checked here.  A config is for one hook: it holds
    the collections that become the hook's own.

    Raises:
        ConfigurationError: If a value can never work; names setting and value.
    """

    out_dir: str | os.PathLike[str] | None = None
    include_collections: Iterable[str] = ()
    include_regex: str | Iterable[str] = ()
    save_config: Any = None
    reduction_config: ReductionConfig | None = None
    save_all: bool = False
    collections: Iterable[Collection | CollectionConfig] = ()
    rules: Any = ()
    include_workers: str | Iterable[int] = "one"
    export_tensorboard: bool = False
    tensorboard_dir: str | os.PathLike[str] | None = None
    dry_run: bool = False
    on_stop: str = "raise"
    overflow: str = "block"
    queue_bytes: int | None = None
    min_free_bytes: int | None = None
    spool_bytes: int | None = None
    codec: str = "auto"
    retention: Any = None
    save_histogram: bool | None = None
    precise: bool = False
    threads: int | None = None
    budget: float | str | None = None
    probes: bool | None = None
    profiler: Any = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # The way of a frozen dataclass.

        if self.save_histogram is None:  # TensorBoard shows them.
            put("save_histogram", self.exports_tensorboard)
        for name in _BOOLEANS:
            check_flag(name, getattr(self, name))
        put("tensorboard_dir", _directory("tensorboard_dir", self.tensorboard_dir))
        put("out_dir", self._place())
        put("include_regex", _regexes(self.include_regex))
        if self.save_config is not None:
            put("save_config", SaveConfig.parse(self.save_config))
        reduction: object = self.reduction_config
        if reduction is not None and not isinstance(reduction, ReductionConfig):
            msg = f"reduction_config must be a ReductionConfig, not {reduction!r}"
            raise ConfigurationError(msg)
        put("collections", tuple(self._collections()))
        put("include_collections", tuple(self._included()))
        put("rules", _rules(self.rules))
        put(
            "profiler",
            ProfilerConfig.of(True if self.profiler is None else self.profiler),
        )
        put("retention", Retention.of(self.retention))
        put("include_workers", _workers(self.include_workers))
        SessionOptions(**self._session_fields(1))  # Checks the remaining settings.

    def _place(self) -> Path | str | None:
        """The directory of the run, or its URL."""
        given = self.out_dir
        if not isinstance(given, str) or not _URL.match(given):
            return _directory("out_dir", given)
        if self.exports_tensorboard:
            msg = (
                "export_tensorboard and tensorboard_dir are for runs in a directory; "
                "export a run at a URL afterwards, with tdbg export tensorboard"
            )
            raise ConfigurationError(msg)
        return given

    def registry(self) -> CollectionRegistry:
        """Return a new registry of the collections that are captured."""
        registry = CollectionRegistry(self.include_collections, self.collections)  # type: ignore[arg-type]
        registry.include(CollectionKeys.LOSSES.value)
        if self.include_regex:
            registry.get(CollectionKeys.DEFAULT.value).include(self.include_regex)
            registry.include(CollectionKeys.DEFAULT.value)
        if self.save_all:
            registry.include(CollectionKeys.ALL.value)
        return registry

    @property
    def exports_tensorboard(self) -> bool:
        """Whether files of TensorBoard are written when the run ends."""
        return self.export_tensorboard or self.tensorboard_dir is not None

    def options(self, *, threads: int = 1, **place: Any) -> SessionOptions:
        """Return the options of the session that writes the run.

        Args:
            threads: The number of threads where the config sets none.
            place: Arguments of ``SessionOptions`` that describe this process.

        Raises:
            ConfigurationError: If a setting does not fit the number of ranks.
        """
        return SessionOptions(
            **self._session_fields(threads),
            include_workers=self.include_workers,  # type: ignore[arg-type]
            **place,
        )

    def _session_fields(self, threads: int) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _SESSION_FIELDS}
        given["threads"] = threads if self.threads is None else self.threads
        return given

    def _collections(self) -> Iterable[Collection]:
        given: object = self.collections
        if isinstance(given, str) or not isinstance(given, Iterable):
            msg = f"collections must be a list of collections, not {given!r}"
            raise ConfigurationError(msg)
        for item in given:
            if isinstance(item, CollectionConfig):
                yield item.make(self.save_config)
            elif isinstance(item, Collection):
                item.check()
                yield item
            else:
                msg = f"collections: expected a Collection, not {item!r}"
                raise ConfigurationError(msg)

    def _included(self) -> Iterable[str]:
        given: object = self.include_collections
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, Iterable):
            msg = f"include_collections must be a list of names, not {given!r}"
            raise ConfigurationError(msg)
        known = {*BUILT_IN, *(item.name for item in self.collections)}
        for name in given:
            if not isinstance(name, str) or name not in known:
                msg = f"include_collections: no {name!r}; {nearest(name, known)}"
                raise ConfigurationError(msg)
            yield str(name)


def _directory(name: str, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        msg = f"{name} must be the path of a directory, not {value!r}"
        raise ConfigurationError(msg)
    text = os.fsdecode(value)
    if _URL.match(text):
        msg = (
            f"{name} must be a directory of this machine, not the URL of another place"
        )
        raise ConfigurationError(msg)
    return Path(text).expanduser()


def _regexes(value: object) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, Iterable):
        msg = f"include_regex must be text or a list of texts, not {value!r}"
        raise ConfigurationError(msg)
    checked = (NamePattern.of_setting("include_regex", each) for each in patterns)
    return tuple(each.pattern for each in checked)


def _rules(value: object) -> tuple[object, ...]:
    """Rules, names and mappings, unchanged: the rules engine resolves them.

    Those of a file or a variable stay ``Located``, so that errors can say where.
    """
    if isinstance(value, str | Mapping | Located) or not isinstance(value, Iterable):
        return () if value is None else (value,)
    return tuple(value)


def _workers(value: object) -> str | tuple[int, ...]:
    """Return the ranks in order; the world size is not known yet."""
    if isinstance(value, str):
        parse_workers(value, 1)
        return value
    return parse_workers(value, _MOST_RANKS)
