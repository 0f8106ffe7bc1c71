"""Records of runs: what they contain, what they depend on, and how they are read. No torch import."""
