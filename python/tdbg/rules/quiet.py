"""That nothing new has come: what rules about a standstill judge by.

Thread safety: a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules.verdicts import HEALTHY, Description, Judgement

__all__ = ["Quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """How long a run has brought no step, and what is known of its training.

    Attributes:
        seconds: Since the last step was recorded, or the training was started again
            after it; before the first one, since the run was looked at first.
        last_step: The last step that was judged, or -1.
        mode: Its mode, or None where there is none.
        alive: Whether the training's process is there; None: unknown, as when it
            runs on another machine.
        ended: Whether the training has ended in order, so that nothing will come.
    """

    seconds: float
    last_step: int
    mode: ModeKeys | None
    alive: bool | None
    ended: bool

    def judge(
        self,
        name: str,
        severity: Severity | None,
        describe: Callable[[], Description],
    ) -> Judgement:
        """A verdict on the last step, under a name that stands for what is still.

        Args:
            name: In place of a tensor's, as "training".
            severity: None: healthy.
            describe: Called if it is a finding.
        """
        level = HEALTHY if severity is None else int(severity)
        return Judgement(
            names=(name,),
            steps=np.array([self.last_step], dtype=np.int64),
            mode=self.mode or ModeKeys.GLOBAL,
            levels=np.array([[level]], dtype=np.int8),
            describe=lambda _i, _j: describe(),
        )
