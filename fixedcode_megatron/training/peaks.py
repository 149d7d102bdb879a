"""Dense peak FLOP/s of GPUs, for the utilisation (MFU).

From the vendors' data sheets, without sparsity (half of the figures that sheets mark as "with
sparsity"), per GPU. A device that is not listed has no utilisation: it is never guessed.
"""

from __future__ import annotations

import re

BF16 = "bf16"
FP8 = "fp8"

_TERA = 1e12
# Words of the device's name; the first row whose words all occur counts: (BF16 or FP16, FP8).
_PEAKS: list[tuple[str, float, float | None]] = [
    ("GB200", 2500.0, 5000.0),
    ("B200", 2250.0, 4500.0),
    ("GH200", 989.4, 1978.9),
    ("H200 NVL", 835.5, 1670.5),
    ("H200", 989.4, 1978.9),
    ("H100 PCIe", 756.5, 1513.0),
    ("H100 NVL", 835.5, 1670.5),
    ("H100", 989.4, 1978.9),
    ("H800 PCIe", 756.5, 1513.0),
    ("H800", 989.4, 1978.9),
    ("H20", 148.0, 296.0),
    ("A100", 312.0, None),
    ("A800", 312.0, None),
    ("A40", 149.7, None),
    ("A30", 165.0, None),
    ("A10", 125.0, None),
    ("L40S", 362.05, 733.0),
    ("L40", 181.05, 362.0),
    ("L4", 121.0, 242.5),
]


def peak_flops(device_name: str, precision: str | None) -> float | None:
    """Dense peak of a device in FLOP/s, or None where it is not known.

    Parameters
    ----------
    device_name
        As CUDA gives it, `NVIDIA H100 PCIe`. A part of a GPU (MIG) is no device of the table.
    precision
        `bf16` (FP16 is the same), `fp8`, or None for a precision that the table does not have.
    """
    words = set(re.split(r"[\s-]+", device_name))
    if precision is None or "MIG" in words:
        return None
    for name, sixteen_bit, eight_bit in _PEAKS:
        if words.issuperset(name.split()):
            peak = eight_bit if precision == FP8 else sixteen_bit
            return None if peak is None else peak * _TERA
    return None
