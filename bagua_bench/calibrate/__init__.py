"""Fits the simulator's physical parameters, and says what its predictions are worth."""
