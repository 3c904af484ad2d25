"""Three trainings of boosted trees that look well, and what tdbg finds in them."""
