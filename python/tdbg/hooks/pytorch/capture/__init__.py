"""What is captured of a training: parameters, gradients, activations, losses, state."""

from __future__ import annotations
