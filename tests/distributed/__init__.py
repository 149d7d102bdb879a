import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):  # all that emerging-optimizers needs of Python 3.12
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
