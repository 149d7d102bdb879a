"""The model: Megatron-Core's GPT with a computed or learned input interface."""
