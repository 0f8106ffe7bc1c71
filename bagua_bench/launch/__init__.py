"""Starts the workers: through torchrun agents of its own, or as part of an existing job."""
