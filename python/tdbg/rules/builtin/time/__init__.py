"""Rules about time: where it goes, why, and what to change."""
