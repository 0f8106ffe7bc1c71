"""Elastic training: checkpoints that ranks come back to, and the processes that restart them."""
