"""Three faults of a rewritten training, each named by `tdbg.diff` at its module."""
