"""Reported mistakes that no loss shows, by people who knew no rule, beside twins."""

from __future__ import annotations
