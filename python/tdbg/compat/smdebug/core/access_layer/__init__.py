"""``smdebug.core.access_layer``: what it knows of a run's directory."""

from __future__ import annotations

from tdbg.compat.smdebug.core.access_layer.utils import (
    check_dir_exists,
    has_training_ended,
)

__all__ = ["check_dir_exists", "has_training_ended"]
