"""Micro-benchmarks of the core, for pytest-benchmark."""
