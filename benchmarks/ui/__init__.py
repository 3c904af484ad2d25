"""The dashboard beside those of others, in the same browser, on the same series."""
