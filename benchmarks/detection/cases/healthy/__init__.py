"""Trainings without a fault."""

from __future__ import annotations
