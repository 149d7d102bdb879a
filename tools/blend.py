#!/usr/bin/env python3
"""Print what a blend of datasets will draw: see --help."""

import sys

from fixedcode_megatron.data.blend_command import main

if __name__ == "__main__":
    sys.exit(main())
