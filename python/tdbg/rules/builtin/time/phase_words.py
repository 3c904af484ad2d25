"""The phases of a step, as findings say them.

Thread safety: constants and pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from tdbg.rules.profile import Bin
from tdbg.run.profile_tables import Phase

__all__ = ["PHASE_WORDS", "words_in"]

#: Phases in words.
PHASE_WORDS: Mapping[Phase, str] = {
    Phase.OTHER: "code between the phases",
    Phase.DATA_WAIT: "waiting for data",
    Phase.COPY: "copying to the device",
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.COMMUNICATION: "waiting for other ranks",
    Phase.OPTIMIZER: "the optimizer",
    Phase.GC: "garbage collection",
    Phase.COMPILE: "compilation",
    Phase.CHECKPOINT: "saving checkpoints",
    Phase.EVALUATION: "evaluation",
    Phase.CAPTURE: "tdbg itself",
    Phase.COMPUTE: "the compiled step",
}
_WITH_MODEL = {**PHASE_WORDS, Phase.OTHER: "the model and other code"}


def words_in(each: Bin) -> Mapping[Phase, str]:
    """Return phases in words, as the framework of a bin tells them apart."""
    return PHASE_WORDS if each.told.tells(Phase.OTHER) else _WITH_MODEL
