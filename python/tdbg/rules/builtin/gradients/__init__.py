"""Rules about gradients: too small, too large, or lost to a narrow float type."""
