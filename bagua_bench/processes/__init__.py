"""Whose something is, and who ends with whom. No torch import."""
