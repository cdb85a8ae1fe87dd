"""OpenTelemetry: one reader, and one file for each convention of spans."""
