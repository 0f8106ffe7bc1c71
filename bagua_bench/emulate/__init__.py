"""Layers that take the time of another machine: the task's parameters are real, computing is not."""
