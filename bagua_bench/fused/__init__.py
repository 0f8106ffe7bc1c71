"""Element-wise optimizers on few flat tensors instead of many parameters (docs/fused-optimizer.md)."""
