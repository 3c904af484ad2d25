"""Mistakes of a program, found in the graph of its loss, its gradients and weights."""

from __future__ import annotations
