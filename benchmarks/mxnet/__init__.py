"""What capture costs a training with Keras, beside Keras's own callback."""
