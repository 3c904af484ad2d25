"""What the profiler costs, beside its peers."""
