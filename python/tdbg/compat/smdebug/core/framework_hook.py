"""What smdebug's hooks have in every framework: files they are made from, collections.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from tdbg.compat.smdebug.core import base
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.json_config import create_hook_from_json_config
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.core.utils import (
    get_tensorboard_dir,
    is_switched_on,
    verify_and_get_out_dir,
)
from tdbg.compat.smdebug.exceptions import SMDebugRuntimeError, SMDebugTypeError
from tdbg.config import HookConfig

__all__ = ["FrameworkHook", "find_hook"]

_H = TypeVar("_H")


class FrameworkHook:
    """Stands before the framework's hook of tdbg, whose methods of these names it is.

    Attributes:
        out_dir: The run directory.
        tensorboard_dir: The folder of files of TensorBoard; may be empty.
        save_all: Whether every tensor is captured.
        save_config: When tensors are saved.
        reduction_config: Statistics only, or raw values as well.
        collection_manager: The collections of the hook.
        include_collections: The names of those that are captured.
    """

    out_dir: str
    tensorboard_dir: Any
    save_all: bool
    save_config: Any
    reduction_config: ReductionConfig
    collection_manager: Any
    include_collections: list[str]

    def _take_arguments(
        self,
        out_dir: str | os.PathLike[str] | None,
        *,
        export_tensorboard: bool,
        tensorboard_dir: str | None,
        reduction_config: ReductionConfig | None,
        save_config: Any,
        include_regex: str | list[str] | None,
        include_collections: Iterable[str] | None,
        save_all: bool,
        manager: Any,
        by_default: Iterable[str],
        by_save_all: Iterable[str] = (CollectionKeys.ALL,),
        every: SaveConfig | None = None,
    ) -> None:
        """Set the attributes from smdebug's arguments, before the run is opened.

        Args:
            out_dir: As of the hook, like all that are not described here.
            export_tensorboard: Whether files of TensorBoard are written.
            tensorboard_dir: Their folder.
            reduction_config: None: raw values.
            save_config: None: *every*.
            include_regex: Adds to the collection ``default``.
            include_collections: Captured beside *by_default*.
            save_all: Adds *by_save_all*.
            manager: The collections that the framework has.
            by_default: Collections that are always captured.
            by_save_all: Those of *save_all*.
            every: The schedule of what has none; None: smdebug's.
        """
        self.out_dir = verify_and_get_out_dir(out_dir)
        self.tensorboard_dir = get_tensorboard_dir(
            export_tensorboard, tensorboard_dir, self.out_dir
        )
        self.save_all = save_all
        every = every or SaveConfig()
        given = SaveConfig.parse(every if save_config is None else save_config)
        given = SaveConfig(given.mode_save_configs)  # A copy, changed below.
        given.merge_default_save_config(every)
        self.save_config = given.copy(is_fixed=True)
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self.collection_manager = manager
        self.include_collections = [*by_default, *_names(include_collections)]
        if include_regex is not None:
            manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self.include_collections.append(CollectionKeys.DEFAULT)
        if save_all:
            self.include_collections += by_save_all
        for name in self.include_collections:
            manager.include(name)
        self._schedule_losses()

    def _schedule_losses(self) -> None:
        """Save losses at the steps of the hook's schedule, not at every step."""
        losses: Any = self.collection_manager.get(CollectionKeys.LOSSES)
        if losses.save_config is None:
            losses.save_config = self.save_config.copy()

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
        """The older name of ``create_from_json_file``."""
        return cls.create_from_json_file(json_config_path)

    def get_collection(self, name: str, create: bool = True) -> Any:
        """The collection of this name; made if there is none and *create* allows it.

        Raises:
            SMDebugError: If there is no such collection, and *create* is False.
        """
        return self.collection_manager.get(name, create)

    def get_collections(self) -> Any:
        """All collections by name."""
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
        """Collections were added or configured."""
        self._schedule_losses()


def find_hook(
    kind: type[_H],
    json_config_path: str | os.PathLike[str] | None,
    create_if_not_exists: bool,
) -> _H | None:
    """The hook of the process, if it is one of this framework.

    Args:
        kind: The framework's class of hooks.
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


def _names(given: object) -> list[str]:
    """The names of collections.

    Raises:
        SMDebugTypeError: If one is no text.
    """
    names = [given] if isinstance(given, str) else list(given or ())  # type: ignore[call-overload]
    for name in names:
        if not isinstance(name, str):
            msg = f"include_collections: {name!r} is no name of a collection"
            raise SMDebugTypeError(msg)
    return names
