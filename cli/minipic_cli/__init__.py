"""The ``minipic`` command."""
