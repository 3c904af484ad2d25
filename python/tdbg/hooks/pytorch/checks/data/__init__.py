"""Where batches come from, what is in them, and what evaluations make of them."""
