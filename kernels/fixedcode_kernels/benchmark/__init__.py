"""Benchmarks of the op beside a plain fill and the learned table it replaces.

    python -m fixedcode_kernels.benchmark --csv results.csv --plot results.png

The same command runs on CPUs and GPUs. Every figure comes from one run in which all candidates take
turns, on outputs that together exceed the cache.
"""
