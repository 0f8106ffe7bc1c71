"""Fits the simulator's physical parameters, and measures how good its predictions are."""
