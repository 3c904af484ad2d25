"""Charts as SVG, drawn by hand, and the markup that they are made of.

For reports and for what notebooks show: it knows values, and no run.
"""
