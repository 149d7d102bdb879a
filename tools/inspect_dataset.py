#!/usr/bin/env python3
"""Show, measure and verify indexed datasets: see --help."""

import sys

from fixedcode_megatron.data.inspect_command import main

if __name__ == "__main__":
    sys.exit(main())
