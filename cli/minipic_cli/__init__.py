"""The `minipic` command."""
