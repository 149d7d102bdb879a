"""The sm_90 machine code: wide stores, no spills, and an instruction count below the budget.

A Hopper GPU has about 56 issue slots per 512-byte warp store at full bandwidth, so a kernel that
stays far below that is bound by memory.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernel_cases import interpreted_triton, random_masks

from fixedcode_kernels.cuda_kernel import find_nvcc
from fixedcode_kernels.spec import make_lift

compiled = pytest.importorskip("compiled")


def find_cuobjdump():
    try:
        import triton
    except ImportError:
        return shutil.which("cuobjdump")
    shipped = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return str(shipped) if shipped.exists() else shutil.which("cuobjdump")


pytestmark = pytest.mark.skipif(find_cuobjdump() is None, reason="cuobjdump is not installed")
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
needs_triton = pytest.mark.skipif(interpreted_triton() is None, reason="triton is not installed")


def dump(cubin, option):
    command = [find_cuobjdump(), option, cubin]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def instructions(sass):
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)", sass)
    return [name for name in names if name != "NOP"]


def assert_no_spills(cubin, sass):
    usage = re.findall(r"STACK:(\d+) .*?LOCAL:(\d+)", dump(cubin, "--dump-resource-usage"))
    assert usage and all(sizes == ("0", "0") for sizes in usage)
    assert not [name for name in instructions(sass) if name.startswith(("LDL", "STL"))]


@needs_triton
@pytest.mark.parametrize("id_type", [torch.int64, torch.int32])
@pytest.mark.parametrize(("affine", "budget"), [(False, 14), (True, 24)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_triton_machine_code(tmp_path, dtype, affine, budget, id_type):
    lift = make_lift(16, 2048, dtype, random_masks(16, 5) if affine else (), 3, 1.0, 0.0, False)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.triton_compiled(lift, id_type).asm["cubin"])
    sass = dump(cubin, "--dump-sass")
    stores = [name for name in instructions(sass) if name.startswith("STG")]
    assert set(stores) == {"STG.E.128"}
    assert_no_spills(cubin, sass)
    assert len(instructions(sass)) <= budget * len(stores)


@needs_nvcc
def test_nvcc_machine_code(tmp_path):
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.nvcc_output("-gencode=arch=compute_90a,code=sm_90a", "-cubin"))
    sass = dump(cubin, "--dump-sass")
    assert_no_spills(cubin, sass)
    functions = dict(re.findall(r"Function : (\S+)(.*?)(?=Function : |\Z)", sass, re.S))
    assert len(functions) == 2 * 2 * len(compiled.SHAPES)
    for name, body in functions.items():
        names = instructions(body)
        stores = [store for store in names if store.startswith("STG")]
        if "ELi3EE" in name:  # elementwise: rows off 16 bytes
            assert set(stores) <= {"STG.E", "STG.E.U16"}
            continue
        assert set(stores) == {"STG.E.128"}
        if "ELi0EE" in name:  # K = 16, the shipped case
            assert len(names) <= 24 * len(stores)
