"""Silent faults that were reported, by people who knew no rule: a second time."""
