"""Raw logs to rows of digests. With `text/`, the only room that sees content."""
