"""Results made readable: rich renderables for a terminal, plain text for a pipe. Nothing here prints."""
