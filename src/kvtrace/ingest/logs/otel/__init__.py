"""OpenTelemetry spans: `reader.py`, and one file for each naming convention of span attributes."""
