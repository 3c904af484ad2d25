"""The PyTorch hook; its public face is ``tdbg.pytorch``."""

from __future__ import annotations
