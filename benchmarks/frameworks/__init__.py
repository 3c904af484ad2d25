"""The same faults in the same training, written in every framework."""
