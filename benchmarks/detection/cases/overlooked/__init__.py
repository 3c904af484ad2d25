"""Reported mistakes that no loss shows, by people who knew no rule: a third time."""

from __future__ import annotations
