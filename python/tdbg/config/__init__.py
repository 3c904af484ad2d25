"""The configuration of a hook, from arguments, files and the environment, as values.

Nothing here captures, and no framework is imported.  docs/configuration.md is the
reference.
"""

from __future__ import annotations

from tdbg.config.collections import Collection, CollectionKeys, CollectionRegistry, Role
from tdbg.config.files import names_file, names_run, read_config, resolve
from tdbg.config.hook_config import HookConfig
from tdbg.config.kinds import Kind
from tdbg.config.needs import BEGINNING, Needs, missing, with_beginning
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.config.retention import Retention
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.config.smdebug_profiler import read_smdebug_profiler
from tdbg.config.text_settings import CollectionConfig

__all__ = [
    "BEGINNING",
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "CollectionRegistry",
    "HookConfig",
    "Kind",
    "Needs",
    "ProfilerConfig",
    "ReductionConfig",
    "Retention",
    "Role",
    "SaveConfig",
    "SaveConfigMode",
    "WindowConfig",
    "missing",
    "names_file",
    "names_run",
    "read_config",
    "read_smdebug_profiler",
    "resolve",
    "with_beginning",
]
