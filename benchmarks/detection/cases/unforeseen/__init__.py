"""Reported mistakes that no loss shows, by people who knew no rule: a second time."""

from __future__ import annotations
