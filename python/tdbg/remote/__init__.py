"""Runs in object stores: which objects there are, and how they get there.

Layers: above ``run``, below all that writes or reads runs.  Importing this loads no
library of a store.
"""

from __future__ import annotations

from tdbg.remote.layout import BlockObject, Manifest, ShippedFile, newest_manifests
from tdbg.remote.stores import Listed, Store, check_url, is_url, open_store, scrub

__all__ = [
    "BlockObject",
    "Listed",
    "Manifest",
    "ShippedFile",
    "Store",
    "check_url",
    "is_url",
    "newest_manifests",
    "open_store",
    "scrub",
]
