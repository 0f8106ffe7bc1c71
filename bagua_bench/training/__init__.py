"""One worker: the engine, the training loop, its clock and its checks."""
