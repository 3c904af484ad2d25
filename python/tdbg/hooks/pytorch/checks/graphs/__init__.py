"""Read the graphs below losses."""
