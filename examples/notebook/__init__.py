"""A run in a notebook: watch.ipynb, and the training that it watches."""
