"""The phases of a training step."""

PHASES = ("forward", "backward", "communication", "optimizer")
"""Communication is what is exposed: the time the training thread waits for it."""
