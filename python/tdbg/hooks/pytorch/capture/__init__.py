"""Capture of a training: parameters, gradients, activations, losses and state."""

from __future__ import annotations
