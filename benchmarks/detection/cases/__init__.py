"""Trainings, by the kind of problem; what they are written with is in ``kit``."""

from __future__ import annotations
