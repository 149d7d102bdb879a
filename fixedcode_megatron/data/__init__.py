"""Documents to token ids to training batches. Only training imports megatron-core here."""
