"""What a user asked a hook for: by arguments, files and the environment.

Free of any framework.  docs/configuration.md is the reference.
"""

from __future__ import annotations

from tdbg.settings.collection_config import CollectionConfig
from tdbg.settings.hook_config import HookConfig
from tdbg.settings.sources import names_file, names_run, read_config, resolve

__all__ = [
    "CollectionConfig",
    "HookConfig",
    "names_file",
    "names_run",
    "read_config",
    "resolve",
]
