#!/usr/bin/env python3
"""Measure a model on tasks of the lm-evaluation-harness: see --help."""

import sys

from fixedcode_megatron.evaluation.command import main

if __name__ == "__main__":
    sys.exit(main())
