"""The hook of XGBoost."""
