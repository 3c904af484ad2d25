"""The report of a training with labels and predictions: XGBoost's nine sections.

They are those of smdebug's ``CreateXgboostReport``, by its names, and what it lacked.
Whatever a run's collections hold is enough: ``labels`` and ``predictions``,
``feature_importance``, ``losses``, ``metrics``, ``trees``.
"""
