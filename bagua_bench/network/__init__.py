"""Emulated networks: one namespace per server, a star of shaped links between them, and what was measured of it."""
