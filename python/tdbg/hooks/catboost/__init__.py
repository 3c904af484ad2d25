"""The hook of CatBoost."""
