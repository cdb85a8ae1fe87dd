"""Text to tokens and back: tokenizers, chat templates, synthetic prompts."""
