"""The timeline of a long run: how large it is, and how long it takes."""
