"""`python -m fixedcode_megatron.env_report`: what is installed, what is missing for which feature.

Imports nothing that starts CUDA before it is asked about, and never fails because of what it finds:
a broken package is a line of the report.
"""

from __future__ import annotations

import argparse
import ctypes.util
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One package or tool.

    Attributes
    ----------
    state
        `ok`, `missing` or `broken`.
    detail
        Version, or what the import said.
    needed_for, remedy
        The feature that depends on it, and how to get it.
    """

    name: str
    state: str
    detail: str
    needed_for: str
    remedy: str
    required: bool


_CONTAINER = "comes with NVIDIA's PyTorch container (see Dockerfile)"
_PACKAGES = (  # module, distribution, needed for, remedy, required
    ("torch", "torch", "everything", "https://pytorch.org/get-started", True),
    ("numpy", "numpy", "everything", "pip install numpy", True),
    ("megatron.core", "megatron-core", "training", "pip install megatron-core", True),
    ("psutil", "psutil", "checkpoints", "pip install psutil", True),
    ("tokenizers", "tokenizers", "preprocessing", "pip install tokenizers", True),
    ("fixedcode_kernels", "fixedcode-megatron", "the input interface", "pip install -e .", True),
    ("triton", "triton", "the token-code kernel in Triton", "pip install triton", False),
    (
        "transformer_engine.pytorch",
        "transformer-engine",
        "--transformer-impl transformer_engine: FP8, fused layers, context parallelism on GPUs",
        f"{_CONTAINER}, or pip install --no-build-isolation transformer-engine[pytorch]",
        False,
    ),
    ("flash_attn", "flash-attn", "TE's flash attention backend", _CONTAINER, False),
    (
        "fused_weight_gradient_mlp_cuda",
        "apex",
        "--gradient-accumulation-fusion without Transformer Engine",
        f"NVIDIA's apex {_CONTAINER} (the apex on PyPI is another project)",
        False,
    ),
    ("einops", "einops", "--num-distributed-optimizer-instances", "pip install einops", False),
    ("pynvml", "nvidia-ml-py", "power and tokens per joule", "pip install nvidia-ml-py", False),
    ("matplotlib", "matplotlib", "figures", "pip install matplotlib", False),
    ("tensorboard", "tensorboard", "--tensorboard-dir", "pip install tensorboard", False),
    ("wandb", "wandb", "--wandb-project", "pip install wandb", False),
    ("transformers", "transformers", "Hugging Face export", "pip install transformers", False),
    ("gigatoken", "gigatoken", "the fastest tokenizer engine", "pip install gigatoken", False),
    ("datasets", "datasets", "reading data sets from the hub", "pip install datasets", False),
)


def packages() -> list[Finding]:
    """Try every package."""
    return [_package(*row) for row in _PACKAGES]


def _package(module: str, distribution: str, use: str, remedy: str, required: bool) -> Finding:
    state, detail = "ok", ""
    try:
        if importlib.util.find_spec(module.split(".")[0]) is None:
            raise ModuleNotFoundError
        importlib.import_module(module)
        detail = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        detail = "version unknown"
    except ModuleNotFoundError as error:
        # The package itself is absent, or something that it imports.
        absent = (None, module, module.split(".")[0])
        state = "missing" if error.name in absent else "broken"
        detail = "" if state == "missing" else str(error)
    except Exception as error:
        state, detail = "broken", _broken(module, error)
    return Finding(
        name=distribution,
        state=state,
        detail=detail,
        needed_for=use,
        remedy=remedy,
        required=required,
    )


def _broken(module: str, error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    binary = "undefined symbol" in text or "cannot open shared object" in text
    if binary and module != "torch":
        try:
            here = importlib.metadata.version("torch")  # which may be broken, too
        except importlib.metadata.PackageNotFoundError:
            here = "is here"
        text += f" (built for another torch than {here}: build or install it anew)"
    return text[:300]


def machine() -> dict[str, str]:
    """The machine, the GPUs and the variables that launchers and NCCL read."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "CPUs": str(len(os.sched_getaffinity(0))),
    }
    try:
        import torch

        found["torch built for CUDA"] = torch.version.cuda or "no (CPUs only)"
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                p = torch.cuda.get_device_properties(index)
                found[f"GPU {index}"] = (
                    f"{p.name}, {p.total_memory / 2**30:.0f} GiB, sm_{p.major}{p.minor}"
                )
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        else:
            found["GPUs"] = _why_no_gpu(torch.version.cuda)
    except Exception as error:
        found["torch"] = _broken("torch", error)
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PET_NPROC_PER_NODE", "NCCL_DEBUG"):
        found[name] = os.environ.get(name, "not set")
    for tool in ("nvcc", "g++", "ninja"):
        found[tool] = shutil.which(tool) or "not found"
    return found


def _why_no_gpu(built_for: str | None) -> str:
    if shutil.which("nvidia-smi") is None and ctypes.util.find_library("cuda") is None:
        return "none: no driver here (in a container: start it with --gpus all)"
    if built_for is None:
        return "a driver is here, but this torch is built for CPUs: install a CUDA build of torch"
    if shutil.which("nvidia-smi") is None:
        return "none that torch can use; the driver's library is here, nvidia-smi is not"
    seen = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return f"none that torch can use; nvidia-smi says: {(seen.stdout or seen.stderr).strip()[:200]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 1 if a package that training needs is missing or broken."""
    parser = argparse.ArgumentParser(prog="python -m fixedcode_megatron.env_report")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)
    findings, where = packages(), machine()
    failed = any(f.required and f.state != "ok" for f in findings)
    if options.json:
        print(json.dumps({"machine": where, "packages": [asdict(f) for f in findings]}, indent=1))
        return int(failed)
    for name, value in where.items():
        print(f"{name:<30}{value}")
    print()
    for f in findings:
        print(f"{f.name:<24}{f.state:<9}{f.detail}")
        if f.state != "ok":
            print(f"{'':<24}needed for: {f.needed_for}")
            print(f"{'':<24}get it:     {f.remedy}")
    print("\nNot ready to train." if failed else "\nReady to train.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
