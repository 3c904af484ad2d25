"""Forwards a run to an experiment tracker: W&B, MLflow or Trackio.

    from tdbg.bridge import Bridge, Destination

    report = Bridge("runs/digits", "mlflow", Destination(project="digits")).forward()

docs/bridge.md says what arrives where.  The tracker's library is imported when a bridge
is opened.
"""

from __future__ import annotations

from tdbg.bridge.bridge import ALERTS, Bridge, BridgeReport
from tdbg.bridge.tracker import TRACKERS, Destination

__all__ = ["ALERTS", "TRACKERS", "Bridge", "BridgeReport", "Destination"]
