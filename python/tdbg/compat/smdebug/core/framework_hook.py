"""The class behind smdebug's hooks of all frameworks.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Never, Protocol, Self, TypeVar

import numpy as np

from tdbg.capture.naming import Naming
from tdbg.capture.policy import Policy
from tdbg.compat.smdebug.core import base
from tdbg.compat.smdebug.core.collection import CollectionKeys, CollectionManager
from tdbg.compat.smdebug.core.config_constants import DEFAULT_SAVED_COLLECTIONS
from tdbg.compat.smdebug.core.json_config import create_hook_from_json_config
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.core.utils import (
    get_tensorboard_dir,
    is_switched_on,
    verify_and_get_out_dir,
)
from tdbg.compat.smdebug.exceptions import SMDebugRuntimeError, SMDebugTypeError
from tdbg.compat.smdebug.left_out import PAGE
from tdbg.config import HookConfig
from tdbg.config.collections import Role
from tdbg.config.files import resolve
from tdbg.hooks.framework import FrameworkHook
from tdbg.modes import ModeKeys

__all__ = ["SmdebugHook", "SmdebugNames", "getter"]

_H = TypeVar("_H", bound="SmdebugHook")
_Made_co = TypeVar("_Made_co", covariant=True)


class SmdebugNames(Naming):
    """Names whose index runs on over the calls of a module in a forward.

    The output of a second call is ``relu_output_1``.
    """

    name = "smdebug"
    index_runs = True


class SmdebugHook(FrameworkHook, base.CallbackHook):
    """A hook with smdebug's arguments, methods and collections.

    The hook of a framework derives from it and from tdbg's own hook, and declares what
    is particular to the framework.

    Args:
        out_dir: The run directory.
        export_tensorboard: Write files of TensorBoard when the run has ended.
        tensorboard_dir: The folder of these files, which switches the export on; None:
            ``tensorboard`` in *out_dir*.
        dry_run: Do everything but write.
        reduction_config: Statistics only, or raw values as well (the default).
        save_config: When tensors are saved; None: as the framework's hook says.
        include_regex: Expressions that find names of further tensors, which belong to
            the collection ``default``.
        include_collections: Captured collections, in addition to the default ones.
        save_all: Capture every tensor.
        include_workers: "one": the lowest rank, or "all".

    Attributes:
        out_dir: The run directory.
        tensorboard_dir: The folder of files of TensorBoard; may be empty.
        save_all: Whether every tensor is captured.
        save_config: When tensors are saved.
        reduction_config: Statistics only, or raw values as well.
        collection_manager: The collections of the hook.
        include_collections: The names of those that are captured.

    Raises:
        SMDebugRuntimeError: If there is no *out_dir*.
        ConfigurationError: If an argument can never work.
        StorageError: If the run cannot be made or written.
    """

    #: Makes the collections of the framework.
    _make_manager: ClassVar[Callable[[], CollectionManager]]
    #: Collections that are always captured.
    _by_default: ClassVar[tuple[str, ...]] = (CollectionKeys.LOSSES,)
    #: Collections that ``save_all`` adds.
    _by_save_all: ClassVar[tuple[str, ...]] = (CollectionKeys.ALL,)
    #: The interval of a hook without a schedule; None: smdebug's.
    _interval: ClassVar[int | None] = None
    #: Makes the scheme of names.
    _make_names: ClassVar[Callable[[], Naming]] = Naming
    #: What to use instead of attributes that only smdebug's hook has.
    _instead: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        include_regex: str | list[str] | None = None,
        include_collections: Iterable[Any] | None = None,
        save_all: bool = False,
        include_workers: str = "one",
    ) -> None:
        self.out_dir = verify_and_get_out_dir(out_dir)
        self.tensorboard_dir = get_tensorboard_dir(
            export_tensorboard, tensorboard_dir, self.out_dir
        )
        self.dry_run = dry_run
        self.save_all = save_all
        every = SaveConfig(save_interval=self._interval)
        given = SaveConfig.parse(every if save_config is None else save_config)
        given = SaveConfig(given.mode_save_configs)  # A copy, changed below.
        given.merge_default_save_config(every)
        self.save_config = given.copy(is_fixed=True)
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self.collection_manager: Any = type(self)._make_manager()
        names = [*self._by_default, *_names(include_collections or ())]
        if include_regex is not None:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            names.append(CollectionKeys.DEFAULT)
        if save_all:
            names += self._by_save_all
        self.include_collections = list(dict.fromkeys(names))
        for name in self.include_collections:
            self.collection_manager.include(name)
        self._schedule_losses()
        self._naming = type(self)._make_names()
        settings = {
            "out_dir": self.out_dir,
            "dry_run": dry_run,
            "include_workers": include_workers,
            "tensorboard_dir": self.tensorboard_dir or None,
        }
        self._configure(lambda: resolve(settings))
        base.set_hook(self)

    def _make_policy(self, config: HookConfig) -> Policy:  # noqa: ARG002
        return Policy(
            self.collection_manager,
            self.save_config.native(),
            self.reduction_config,
            save_histogram=bool(self.tensorboard_dir),
            naming=self._naming,
        )

    # ---- configuration ---------------------------------------------------------

    @classmethod
    def _made(cls, make_config: Callable[[], HookConfig]) -> Self:
        del make_config
        msg = "smdebug's hook takes arguments, or a file: create_from_json_file"
        raise SMDebugRuntimeError(msg)

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None
    ) -> Self:
        """Make a hook with the settings of a JSON file.

        Args:
            json_file_path: The file; None: the one that ``SMDEBUG_CONFIG_FILE_PATH``
                names.

        Raises:
            FileNotFoundError: If there is no such file.
            ConfigurationError: If a setting can never work.
        """
        hook: Self = create_hook_from_json_config(cls, json_file_path)
        return hook

    @classmethod
    def hook_from_config(
        cls, json_config_path: str | os.PathLike[str] | None = None
    ) -> Self:
        """Call ``create_from_json_file``, by its older name."""
        return cls.create_from_json_file(json_config_path)

    def has_default_hook_configuration(
        self, default_saved_collections: Iterable[str] = DEFAULT_SAVED_COLLECTIONS
    ) -> bool:
        """Return whether it captures these collections and no others."""
        captured = {item.name for item in self.collection_manager.captured()}
        return captured == set(default_saved_collections)

    # ---- collections -----------------------------------------------------------

    def get_collection(self, name: str, create: bool = True) -> Any:
        """Return the collection of this name, or make it if *create* allows it.

        Raises:
            SMDebugError: If there is no such collection, and *create* is False.
        """
        return self.collection_manager.get(name, create)

    def get_collections(self) -> Any:
        """Return all collections by name."""
        return self.collection_manager.get_collections()

    def add_collection(self, collection: Any) -> None:
        """Add a collection, which is captured if the hook was given its name.

        Raises:
            SMDebugTypeError: If *collection* is no collection.
        """
        self.collection_manager.add(collection)
        self._collections_change()

    def configure_collections(self, collections: Iterable[Any]) -> None:
        """Configure collections as a file does: expressions add up, the last wins."""
        for collection in collections:
            self.collection_manager.merge(collection)
        self._collections_change()

    def _collections_change(self) -> None:
        """Prepare for collections that were added or configured."""
        self._schedule_losses()

    def _schedule_losses(self) -> None:
        """Save losses at the steps of the hook's schedule, not at every step."""
        losses: Any = self.collection_manager.get(CollectionKeys.LOSSES)
        if losses.save_config is None:
            losses.save_config = self.save_config.copy()

    # ---- by hand ---------------------------------------------------------------

    def save_scalar(
        self,
        name: str,
        value: Any,
        sm_metric: bool = False,
        timestamp: float | None = None,
    ) -> None:
        """Record a number as ``scalar/<name>``, always.

        Args:
            name: Name of the number.
            value: The number, or a tensor or array of one.
            sm_metric: Ignored: there is no SageMaker to send the number to.
            timestamp: When the number was true, in seconds since 1970; None: now.
        """
        del sm_metric
        if isinstance(value, np.ndarray | list | tuple) and np.size(value) == 1:
            value = np.asarray(value).item()
        super().save_scalar(name, value, timestamp=timestamp)

    def record_trace_events(
        self,
        timestamp: float,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        duration: float = 1,
        **kwargs: Any,
    ) -> None:
        """Record an interval as a span of the run's profile; never raises.

        Args:
            timestamp: When it began, in seconds since 1970.
            training_phase: What it belongs to; the span is ``training_phase/op_name``.
            op_name: What happened.
            phase: "X", an interval; others are ignored.
            duration: Its length in seconds.
            **kwargs: Ignored.
        """
        del kwargs
        if phase == "X":
            name = "/".join(filter(None, (str(training_phase), str(op_name))))
            self._session.run(self._write_span, name, timestamp, duration)

    def _write_span(self, name: str, timestamp: float, duration: float) -> None:
        session = self._session
        if not name or session.writes_as is None:
            return
        writer: Any = session.writer
        number = writer.define(name, int(Role.SPAN))
        ago_ns = time.time_ns() - int(timestamp * 1e9)
        writer.span(
            session.latest_step(ModeKeys.TRAIN)[0],
            number,
            time.monotonic_ns() - ago_ns,
            max(int(duration * 1e9), 0),
            thread=threading.get_native_id(),
        )

    # ---- state -----------------------------------------------------------------

    @property
    def mode(self) -> ModeKeys:
        """The present mode: that of ``set_mode``, or else the one the hook saw."""
        return self._mode.now()

    @property
    def step(self) -> int:
        """The global step that began last; -1 before the first."""
        return self._session.latest_step(ModeKeys.GLOBAL)[0]

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """The latest step of each mode that has any; GLOBAL counts all modes."""
        latest = self._session.latest_step
        steps = {mode: latest(mode)[1] for mode in ModeKeys}
        steps[ModeKeys.GLOBAL] = self.step
        return {mode: step for mode, step in steps.items() if step >= 0}

    def should_save_tensor_or_collection(
        self, tensor_name: str, collection_name: str
    ) -> bool:
        """Return whether such a tensor is saved at the present step."""
        mode = self.mode
        step = self._session.latest_step(mode)[1]
        if step < 0:
            return False
        for item in self.collection_manager.captured():
            config = getattr(item, "save_config", None) or self.save_config
            own = config.mode_save_configs[mode] or self.save_config.get_save_config(
                mode
            )
            is_its = item.name == collection_name and (
                not item.include_regex or item.has(tensor_name, Role.OTHER)
            )
            has = is_its or item.has(tensor_name, Role.OTHER)
            if has and own.should_save_step(step):
                return True
        return False

    def _cleanup(self) -> None:
        self.close()

    def __getattr__(self, name: str) -> Never:
        instead = self._instead.get(name)
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        if instead is not None:
            msg += f", as smdebug's has: {instead} ({PAGE})"
        raise AttributeError(msg, name=name, obj=self)


class _Getter(Protocol[_Made_co]):
    def __call__(
        self,
        json_config_path: str | os.PathLike[str] | None = None,
        create_if_not_exists: bool = False,
    ) -> _Made_co | None: ...


def getter(kind: type[_H]) -> _Getter[_H]:
    """Make the function ``get_hook`` of a framework, whose class of hooks is *kind*."""

    def get_hook(
        json_config_path: str | os.PathLike[str] | None = None,
        create_if_not_exists: bool = False,
    ) -> _H | None:
        """Return the hook of the process, if it is one of this framework.

        Args:
            json_config_path: The file to make a hook from; None: the one that
                ``SMDEBUG_CONFIG_FILE_PATH`` names.
            create_if_not_exists: Whether to make a hook if there is none and the file
                exists.

        Returns:
            The hook; None if there is none, or ``USE_SMDEBUG=0`` switches it off.
        """
        if not is_switched_on():
            return None
        found = base.get_hook(
            json_config_path=json_config_path,
            hook_class=kind,
            create_if_not_exists=create_if_not_exists,
        )
        return found if isinstance(found, kind) else None

    return get_hook


def _names(given: Iterable[Any]) -> list[str]:
    """Return names of collections from names and nested lists of names.

    Raises:
        SMDebugTypeError: If one is not text.
    """
    if isinstance(given, str):
        return [given]
    found: list[str] = []
    for item in given:
        if isinstance(item, str | list | tuple | set):
            found += _names(item)
        else:
            msg = f"include_collections: {item!r} is not a name of a collection"
            raise SMDebugTypeError(msg)
    return found
