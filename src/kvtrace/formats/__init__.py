"""Trace files in and out: formats, Parquet data sets, the sidecar, files for clients, and `check`."""
