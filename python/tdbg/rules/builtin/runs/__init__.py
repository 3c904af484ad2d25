"""Rules about a run as a whole: whether it goes on, and whether it is like others."""
