"""Prefix caches: live, and simulated."""
