#!/usr/bin/env python3
"""Tokenize documents into Megatron's indexed datasets: see --help."""

import sys

from fixedcode_megatron.data.interpreter import boot

if __name__ == "__main__":
    boot()
    from fixedcode_megatron.data.command_line import preprocess_main

    sys.exit(preprocess_main())
