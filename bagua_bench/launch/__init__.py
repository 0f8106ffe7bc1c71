"""Who starts the workers: torchrun agents of our own, or a job that exists already."""
