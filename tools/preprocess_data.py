#!/usr/bin/env python3
"""Tokenize documents into Megatron's indexed datasets: see --help."""

import sys

from fixedcode_megatron.data.command_line import preprocess_main

if __name__ == "__main__":
    sys.exit(preprocess_main())
