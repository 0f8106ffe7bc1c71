"""Layers of a model that communicate themselves."""
