"""Why prompt tokens of a simulation were not hits: one cause for each token, and what would help."""
