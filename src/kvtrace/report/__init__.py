"""Presentation of results: tables, JSON, CSV, plots, and the HTML page."""
