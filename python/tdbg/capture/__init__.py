"""The write side, free of any framework.

A hook translates what its framework does into events of a ``Session``.  This package
decides what is captured, when, under which name and in which step.
"""

from __future__ import annotations
