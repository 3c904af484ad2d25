"""Rules about data: the inputs of a model, and how well it learns its classes."""
