"""What losses compute, and from what."""
