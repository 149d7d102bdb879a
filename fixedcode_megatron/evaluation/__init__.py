"""Trained models on the tasks of EleutherAI's lm-evaluation-harness."""
