#!/usr/bin/env python3
"""Train a byte-level BPE of an exact size on documents: see --help."""

import sys

from fixedcode_megatron.data.command_line import train_tokenizer_main

if __name__ == "__main__":
    sys.exit(train_tokenizer_main())
