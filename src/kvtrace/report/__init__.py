"""Results as tables, JSON, plots, and one HTML page."""
