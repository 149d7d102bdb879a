"""Trainings as programs of their own: the quickstart's and those of a comparison."""
