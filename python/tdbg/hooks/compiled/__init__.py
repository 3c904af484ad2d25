"""Steps that a framework compiles, in two variants: plain, and with taps."""
