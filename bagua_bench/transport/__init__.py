"""Bagua-Net, a multi-stream TCP transport: one C++ core, an NCCL net plugin and a torch.distributed backend.

docs/transport.md describes it. Importing this package makes the backend known to
`torch.distributed.init_process_group("bagua_net")`.
"""

import torch.distributed as dist

from bagua_bench.transport.native import NAME
from bagua_bench.transport.torch_backend import BaguaNetGroup

if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, BaguaNetGroup, devices=["cpu"])
