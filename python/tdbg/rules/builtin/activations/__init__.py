"""Rules about activations, and about rows of embeddings."""
