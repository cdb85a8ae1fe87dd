"""The proxy for OpenAI- and Anthropic-compatible endpoints: forward, copy, and turn copies into rows of a log."""
