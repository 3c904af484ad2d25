"""What capture costs loops with GradientTape, beside tf.summary."""
