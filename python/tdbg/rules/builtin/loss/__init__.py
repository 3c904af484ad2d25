"""Rules about losses, of training and of evaluation."""
