"""Predicts what cannot be run: the engine's own schedule under a virtual clock and a model of the network."""
