"""What smdebug's hooks have in every framework: files they are made from, collections.

docs/migrating-from-smdebug.md lists the differences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Self

from tdbg.compat.smdebug.core.json_config import create_hook_from_json_config
from tdbg.compat.smdebug.exceptions import SMDebugRuntimeError
from tdbg.config import HookConfig

__all__ = ["FrameworkHook"]


class FrameworkHook:
    """Stands before the framework's hook of tdbg, whose methods of these names it is.

    Attributes:
        collection_manager: The collections of the hook.
    """

    collection_manager: Any

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
