"""What a program does wrong, read from its graph, its gradients and its weights."""

from __future__ import annotations
