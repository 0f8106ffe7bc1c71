"""The phases of a training step."""

PHASES = ("forward", "backward", "communication", "optimizer")
"""Communication is the exposed part: the time in which the training thread waits for it."""
