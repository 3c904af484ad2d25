"""Rules about weights: how they begin, and how an optimizer changes them."""
