"""Which runs there are, in what order, and how each comes to its record. No torch import."""
