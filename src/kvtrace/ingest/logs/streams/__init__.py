"""Streamed answers of each API, put together as the answers that the API gives without streaming."""
