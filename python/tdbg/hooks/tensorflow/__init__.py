"""The hook for trainings with TensorFlow's tapes; docs/tensorflow.md."""
