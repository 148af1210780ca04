"""What the engine must compute, worked out without any of the product's code (DESIGN section 3, I3)."""
