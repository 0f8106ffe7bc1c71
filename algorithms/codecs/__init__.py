"""Lossy codecs for gradients and weights."""
