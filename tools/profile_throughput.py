#!/usr/bin/env python3
"""Measure training speed with a learned table and with fixed codes: see --help."""

import sys

from fixedcode_megatron.planning.throughput_command import main

if __name__ == "__main__":
    sys.exit(main())
