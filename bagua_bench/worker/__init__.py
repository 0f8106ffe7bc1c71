"""One rank of a run: it builds, trains, measures and checks."""
