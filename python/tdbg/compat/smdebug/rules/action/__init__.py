"""``smdebug.rules.action``: what a rule does when its condition is met.

``stoptraining`` asks the training of the rule's run to stop.  Messages go through
SageMaker in smdebug; tdbg has actions of its own for them (docs/actions.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.trials.trial import Trial
from tdbg.config.messages import short
from tdbg.errors import TdbgError
from tdbg.run import request_stop

__all__ = ["ALLOWED_ACTIONS", "Actions"]

ALLOWED_ACTIONS = ["stoptraining", "sms", "email"]


class Actions:
    """The actions of a rule.

    Args:
        actions_str: JSON in any case, a mapping or a list of them:
            ``{"name": "stoptraining"}``.  Empty or None: there are none.
        rule_name: The rule, for the reason that the training is given.
        trial: The run whose training is stopped.  Its name is not compared with
            ``training_job_prefix``: the rule judges that run.

    Raises:
        SMDebugValueError: If *actions_str* has another form.
    """

    def __init__(
        self, actions_str: str | None, rule_name: str, trial: Trial | None = None
    ) -> None:
        self._rule_name, self._trial = rule_name, trial
        self._logger = get_logger()
        names = [_name_of(action) for action in _parsed(actions_str)]
        self._is_to_stop = ALLOWED_ACTIONS[0] in names
        for name in names:
            if name != ALLOWED_ACTIONS[0]:
                self._logger.warning(
                    "%s: the action %s does nothing here; `tdbg watch` sends messages "
                    "(docs/actions.md)",
                    rule_name,
                    short(name),
                )

    def invoke(self, message: str = "") -> None:
        """Ask the training to stop, once, if it is to and still goes on."""
        if not self._is_to_stop or self._trial is None or self._trial.loaded_all_steps:
            return
        try:
            reason = f"{self._rule_name}: {message or 'its condition is met'}"
            request_stop(self._trial.path, reason=reason, rule=self._rule_name)
            self._is_to_stop = False
        except TdbgError as error:
            self._logger.warning(
                "%s: the training cannot be stopped: %s", self._rule_name, error
            )


def _parsed(text: str | None) -> list[Any]:
    if text is None or not text.strip():
        return []
    try:
        found = json.loads(text.lower())
    except ValueError as error:
        msg = f"action_str must be JSON, as {{'name': 'stoptraining'}}: {error}"
        raise SMDebugValueError(msg) from error
    return found if isinstance(found, list) else [found]


def _name_of(action: object) -> str:
    name = action.get("name") if isinstance(action, Mapping) else None
    if not isinstance(name, str):
        msg = f"an action must be a mapping with a name, not {short(action)}"
        raise SMDebugValueError(msg)
    return name
