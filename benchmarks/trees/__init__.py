"""What the hooks of boosted trees cost."""
