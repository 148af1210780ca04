"""Small prompts whose segments, positions and visibility were worked out by hand."""
