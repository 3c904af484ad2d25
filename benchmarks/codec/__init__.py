"""Codecs on tensors of real trainings."""
