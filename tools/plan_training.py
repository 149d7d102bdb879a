#!/usr/bin/env python3
"""Choose a layout of GPUs for a run, with its memory, speed and cost: see --help."""

import sys

from fixedcode_megatron.planning.command import main

if __name__ == "__main__":
    sys.exit(main())
