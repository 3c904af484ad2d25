"""Charts as SVG, drawn by hand: docs/report.md."""
