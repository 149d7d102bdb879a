"""Estimates of memory, communication and time for a layout of ranks, and their proof.

`estimate` works them out on paper; `rehearsal` builds the real program as one rank of the job.
"""
