"""Reported mistakes after which every loss falls, each beside its healthy twin."""

from __future__ import annotations
