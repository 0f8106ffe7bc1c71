"""Records of runs: what stands in them, what they depend on, and how they are read. No torch import."""
