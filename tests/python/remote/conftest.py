"""A server of S3 for tests of stores."""

from __future__ import annotations

from moto_proxy import moto_port, proxy

__all__ = ["moto_port", "proxy"]
