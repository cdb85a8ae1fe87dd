"""What the docs site generates: a page for each command, the Python API, and the JSON schemas (`make site`)."""
