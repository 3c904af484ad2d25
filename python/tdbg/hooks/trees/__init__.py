"""What the hooks of boosted trees share: tables of trees, importance, margins, SHAP."""
