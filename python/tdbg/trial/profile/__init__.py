"""Where the time of a run went: docs/profiler-reading.md."""

from __future__ import annotations

from tdbg.trial.profile.analysis import DeviceUse
from tdbg.trial.profile.clock import RunClock
from tdbg.trial.profile.energy import EnergyUse, energy_of
from tdbg.trial.profile.profile import Profile
from tdbg.trial.profile.tables import ProfileTables
from tdbg.trial.profile.windows import RecordedWindow

__all__ = [
    "DeviceUse",
    "EnergyUse",
    "Profile",
    "ProfileTables",
    "RecordedWindow",
    "RunClock",
    "energy_of",
]
