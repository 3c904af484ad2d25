"""Rules of somebody else, each in a process of its own."""
