"""Layers that take as long as on another machine: the task's parameters are real, computing is not."""
