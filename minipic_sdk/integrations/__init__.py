"""Adapters for frameworks; each needs the extra of its name: ``pip install 'minipic-sdk[langchain]'``."""
