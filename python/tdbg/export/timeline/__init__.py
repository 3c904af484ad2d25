"""One timeline of a run, as files of other tools: docs/timeline.md."""

from __future__ import annotations

from tdbg.export.timeline.build import TimelineOptions, timeline_of
from tdbg.export.timeline.chrome import chrome_trace
from tdbg.export.timeline.files import (
    TimelineReport,
    export_chrome,
    export_perfetto,
)
from tdbg.export.timeline.model import Counter, SliceTrack, Timeline
from tdbg.export.timeline.perfetto import perfetto_trace

__all__ = [
    "Counter",
    "SliceTrack",
    "Timeline",
    "TimelineOptions",
    "TimelineReport",
    "chrome_trace",
    "export_chrome",
    "export_perfetto",
    "perfetto_trace",
    "timeline_of",
]
