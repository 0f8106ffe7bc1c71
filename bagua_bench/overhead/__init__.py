"""`bagua-bench overhead`: what algorithms cost beside PyTorch's DDP where no network counts, in time and in memory."""
