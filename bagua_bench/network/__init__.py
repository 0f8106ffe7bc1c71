"""Emulated networks: one namespace per server, a star of shaped links between them, and measurements of it.

docs/networks.md describes how they are built and measured.
"""
