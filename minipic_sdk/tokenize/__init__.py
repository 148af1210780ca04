"""Tokenizers: text to ids, each piece of a prompt on its own."""
