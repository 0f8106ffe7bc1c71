"""Loading of data for several ranks: load-balanced samplers and a cached dataset, for tasks and for users' own code."""
