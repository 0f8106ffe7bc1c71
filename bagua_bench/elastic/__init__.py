"""Elastic training: checkpoints that ranks come back to, processes that restart them, and ranks that go on without."""

MEET = "BAGUA_BENCH_MEET"
"""The variable that tells a rank where the members of a run without restarts meet: ADDRESS:PORT/SERVER."""
