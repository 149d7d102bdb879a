"""The training system on megatron-core's schedules, DDP, optimizers and checkpoints."""
