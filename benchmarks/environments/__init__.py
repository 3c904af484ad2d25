"""What is installed beside each other; ``create.py`` makes the environments."""
