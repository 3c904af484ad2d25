"""The hook of LightGBM."""
