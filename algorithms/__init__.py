"""Bagua's algorithms, one short file each, on four primitives and one seam (`algorithms.base`)."""
