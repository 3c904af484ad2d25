"""Rules about data: what a model is fed, and how well it tells its classes apart."""
