"""The hook for Keras 3, whichever backend it has; docs/keras.md."""
