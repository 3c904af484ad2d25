"""The write side of a profile: where a training's time goes, and on what machine.

It stands on ``capture``, whose session writes its tables (``run/profile_tables.py``).
"""
