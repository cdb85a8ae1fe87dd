"""Where the prompts of a log diverge though they nearly agree: what breaks the sharing of prefixes."""
