"""Which algorithm and transport for a task on a cluster. No torch import until something is simulated."""
