"""A run that is watched in a cell of a notebook: docs/notebook.md, "Live".

Needs the ``notebook`` extra (anywidget); importing this module needs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdbg.errors import ConfigurationError

if TYPE_CHECKING:
    from tdbg.notebook.widget import Live
    from tdbg.trial import Trial

__all__ = ["live"]


def live(
    trial: Trial, tensors: str | Sequence[str] | None = None, field: str = "rms"
) -> Live:
    """Show a run in a cell, live: verdict, losses, all layers, findings.

    The picture follows the run, at most ten times a second, and the newest wins.  That
    ends when the training has ended, or the widget is closed (``close()``); while no
    cell shows it, nothing is read.

    Args:
        trial: The run.
        tensors: What the map has a row of: a collection or names; None: gradients, or
            weights where there are none.
        field: The statistic of the map: l2, rms, std, abs_max or zero_share.

    Returns:
        A widget: the last expression of a cell shows it.

    Raises:
        ConfigurationError: If anywidget is not installed, or there is no such field.
        QueryError: If there is no such collection, or no tensor of such a name.

    Example:
        tdbg.notebook.live(tdbg.create_trial("runs/digits"))
    """
    try:
        from tdbg.notebook.widget import Live
    except ImportError as error:
        msg = f"live views need {error.name}: pip install 'tdbg[notebook]'"
        raise ConfigurationError(msg) from error
    return Live(trial, tensors, field)
