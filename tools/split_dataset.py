#!/usr/bin/env python3
"""Hold documents out of an indexed dataset by their content: see --help."""

import sys

from fixedcode_megatron.data.split_command import main

if __name__ == "__main__":
    sys.exit(main())
