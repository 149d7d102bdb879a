#!/usr/bin/env python3
"""Build the sample indices of a training run ahead of time: see --help."""

import sys

from fixedcode_megatron.prebuild import main

if __name__ == "__main__":
    sys.exit(main())
