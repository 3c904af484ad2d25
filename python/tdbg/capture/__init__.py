"""All policy of the write side, free of any framework.

A hook translates what its framework does into the events of a ``Session``; what
is captured, when, under which name and in which step is decided here.
"""

from __future__ import annotations
