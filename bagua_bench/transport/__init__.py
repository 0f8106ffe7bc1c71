"""Bagua-Net: a multi-stream TCP transport. One C++ core, two faces: an NCCL net plugin and a torch.distributed backend."""
