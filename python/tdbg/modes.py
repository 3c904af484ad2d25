"""The modes of a training, with the numbers that they have on disk."""

from __future__ import annotations

import enum

__all__ = [
    "EVAL",
    "EVALUATION",
    "GLOBAL",
    "PREDICT",
    "TRAIN",
    "TRAINING",
    "ModeKeys",
    "modes",
]


class ModeKeys(enum.Enum):
    """The phase that a step belongs to; each mode counts its own steps."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4

    # Enum's own is written in Python, and every step hashes its mode several times.
    __hash__ = object.__hash__


# smdebug's name.  The members are names of this module too, so that
# `from tdbg import modes; modes.TRAIN` means the same as there.
modes = ModeKeys
TRAIN = ModeKeys.TRAIN
EVAL = ModeKeys.EVAL
PREDICT = ModeKeys.PREDICT
GLOBAL = ModeKeys.GLOBAL

TRAINING = frozenset({TRAIN, GLOBAL})
"""Modes in which a step trains; GLOBAL is that of a training without modes."""

EVALUATION = frozenset({EVAL, PREDICT})
"""Modes in which a step only asks the model."""
