"""Rules about tensors of any kind."""
