"""How much slower a training becomes by what watches it."""
