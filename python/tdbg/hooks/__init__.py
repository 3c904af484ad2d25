"""One package per framework: they register, translate and forward; no policy."""

from __future__ import annotations
