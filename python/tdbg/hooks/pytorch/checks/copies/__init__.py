"""Copies of weights, and modes of modules."""
