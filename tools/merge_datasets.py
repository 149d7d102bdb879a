#!/usr/bin/env python3
"""Merge indexed datasets into one: see --help."""

import sys

from fixedcode_megatron.data.merge_command import main

if __name__ == "__main__":
    sys.exit(main())
