"""`tools/compare_runs.py`: matched runs from a grid of settings, and what their numbers support."""
