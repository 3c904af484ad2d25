"""smdebug's modules, classes and functions, on tdbg's engine.

    import tdbg.compat.smdebug.pytorch as smd

in place of ``import smdebug.pytorch as smd``; or leave the script as it is:

    python -m tdbg.compat.smdebug train.py

Every module is where smdebug has it.  docs/migrating-from-smdebug.md says what
differs, and why.
"""

from __future__ import annotations

from tdbg.compat.smdebug._alias import install
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.modes import ModeKeys as modes  # noqa: N813
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

# Of the release that this stands for.
__version__ = "1.0.34"
