"""Programs to run and to read: what tdbg is for, on real data."""
