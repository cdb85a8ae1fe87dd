"""Text to tokens and back: tokenizers, chat templates, made-up prompts."""
