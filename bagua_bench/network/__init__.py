"""Emulated networks: one namespace per server, a star of shaped links between them, and measurements of it."""
