"""What capture costs a compiled training in JAX."""
