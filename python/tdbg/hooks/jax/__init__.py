"""The hook for JAX, Flax and Equinox: compiled steps, optax, modules."""
