"""Runs in object stores: which objects there are, and how they get there.

Layers: above ``run``, below all that writes or reads runs.  Importing this loads no
library of a store.
"""

from __future__ import annotations

from tdbg.remote.fetching import Fetcher
from tdbg.remote.finding import ListedRun, beside, find_runs
from tdbg.remote.followed import FollowedRun, FollowedWriter, asked
from tdbg.remote.layout import (
    MANIFESTS,
    BlockObject,
    Manifest,
    ShippedFile,
    newest_manifests,
)
from tdbg.remote.outbox import Outbox
from tdbg.remote.shipping import (
    Shipping,
    leave_waiting_to_launcher,
    ship_seconds,
    wait_until_sent,
)
from tdbg.remote.spool import lead_spool, spool_of, spool_url
from tdbg.remote.stores import Listed, Store, check_url, is_url, open_store, scrub
from tdbg.remote.uploader import Progress, Uploader
from tdbg.remote.uploads import Uploads

__all__ = [
    "MANIFESTS",
    "BlockObject",
    "Fetcher",
    "FollowedRun",
    "FollowedWriter",
    "Listed",
    "ListedRun",
    "Manifest",
    "Outbox",
    "Progress",
    "ShippedFile",
    "Shipping",
    "Store",
    "Uploader",
    "Uploads",
    "asked",
    "beside",
    "check_url",
    "find_runs",
    "is_url",
    "lead_spool",
    "leave_waiting_to_launcher",
    "newest_manifests",
    "open_store",
    "scrub",
    "ship_seconds",
    "spool_of",
    "spool_url",
    "wait_until_sent",
]
