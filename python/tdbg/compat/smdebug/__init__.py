"""smdebug's modules, classes and functions, on tdbg's engine.

    import tdbg.compat.smdebug.pytorch as smd

in place of ``import smdebug.pytorch as smd``; or leave the script as it is:

    python -m tdbg.compat.smdebug train.py

Every name has the module that it has in smdebug.  docs/migrating-from-smdebug.md lists
the differences and their reasons.
"""

from __future__ import annotations

from tdbg.compat.smdebug.alias import install, serve_moved_paths
from tdbg.compat.smdebug.core.base import ModeKeys as modes  # noqa: N813
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode

__all__ = [
    "CollectionKeys",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "__version__",
    "install",
    "modes",
]

serve_moved_paths()

# The release of smdebug that this package stands for.
__version__ = "1.0.34"
