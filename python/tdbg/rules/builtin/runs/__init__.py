"""Rules about a run as a whole: whether it stalls, and whether it repeats another."""
