"""Errors, files, workers, memory, units: what every room stands on."""
