#!/usr/bin/env python3
"""Train the runs of a grid and compare them: see --help."""

import sys

from fixedcode_megatron.comparison.command import main

if __name__ == "__main__":
    sys.exit(main())
