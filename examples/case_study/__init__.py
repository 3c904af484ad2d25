"""A training with three mistakes: found by rules, stopped, understood, and mended.

``python -m examples.case_study`` runs it; docs/case-study.md tells the story.
"""
