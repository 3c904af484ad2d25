"""Optimizers, schedules and clipping."""
