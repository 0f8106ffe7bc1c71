"""Bagua-Net, a multi-stream TCP transport: one C++ core, an NCCL net plugin and a torch.distributed backend."""
