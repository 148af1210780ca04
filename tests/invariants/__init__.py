"""I1 to I10 of the design, each on the real vLLM engine."""
