"""`make quickstart`: three input interfaces trained on the same data, compared in one report."""
