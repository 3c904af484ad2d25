"""Invariants that are learnt from healthy runs: the file, and the relations."""
