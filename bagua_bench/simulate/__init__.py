"""Predicts runs on clusters that are not at hand: the engine's own schedule, a virtual clock and a network model."""
