"""Which runs there are, in what order, and how each is recorded. No torch import."""
