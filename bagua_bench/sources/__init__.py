"""Reads Python sources without importing them."""
