"""How fast and at what cost values get to the disk."""
