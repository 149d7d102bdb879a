#!/usr/bin/env python3
"""Train a small model with each input interface and compare them: see --help."""

import sys

from fixedcode_megatron.quickstart.run import main

if __name__ == "__main__":
    sys.exit(main())
