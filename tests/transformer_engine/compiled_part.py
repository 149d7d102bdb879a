"""Transformer Engine's own Python code on a machine without its compiled part.

What the compiled extension provides is replaced by placeholders that raise when they are called;
enumerations that the Python code compares with are taken from its own sources. Layers can be built,
on the meta device, not run.
"""

from __future__ import annotations

import ast
import enum
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

_EXPORT_ONLY = ("onnx", "onnxscript", "nvdlfw_inspect")


class _NamedValues(type):
    """A class whose attributes are numbers, made when they are asked for."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, len(vars(cls)))
        return vars(cls)[name]


class _Extension(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _mirrored_enumeration(name)
        if value is None:
            value = _NamedValues(name, (), {}) if name[0].isupper() else _not_here(name)
        setattr(self, name, value)
        return value


def _not_here(name: str) -> Any:
    def function(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError(f"{name} is in Transformer Engine's compiled part")

    return function


def _mirrored_enumeration(name: str) -> type[enum.IntEnum] | None:
    """The enumeration of this name as Transformer Engine's Python code repeats it."""
    import transformer_engine

    prefix = "NVTE_" if name.startswith("NVTE_") else ""
    wanted = name.removeprefix(prefix).replace("_", "")
    root = Path(transformer_engine.__path__[0], "pytorch")
    for file in ("constants.py", "cpp_extensions/fused_attn.py"):
        for node in ast.parse((root / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == wanted and node.bases:
                names = [item.targets[0].id for item in node.body if isinstance(item, ast.Assign)]
                return enum.IntEnum(name, {prefix + n: i for i, n in enumerate(names)})
    return None


class _Anything:
    """Stands for whatever the export to ONNX needs when it is imported."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorated = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorated else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __or__(self, _other: Any) -> Any:
        return self

    __ror__ = __or__

    def __getitem__(self, _key: Any) -> Any:
        return self


class _ExportModules:
    """Finds the packages that only the export to ONNX and the debugger need."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name.split(".")[0] in _EXPORT_ONLY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _Anything().__getattr__  # type: ignore[method-assign]
        return module

    def exec_module(self, _module: Any) -> None: ...


class _Hopper:
    major, minor, multi_processor_count, total_memory = 9, 0, 132, 80 * 2**30


def install(folder: Path) -> None:
    """Make `import transformer_engine` find the wheel's files in `folder`; call before megatron."""
    sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch: do not look for CUDA's libraries
    sys.modules["transformer_engine_torch"] = _Extension("transformer_engine_torch")
    sys.meta_path.append(_ExportModules())  # type: ignore[arg-type]
    import transformer_engine.common as common

    common.load_framework_extension = lambda _name: None
    import transformer_engine.pytorch  # noqa: F401

    torch.cuda.get_device_capability = lambda *_args: (9, 0)
    torch.cuda.get_device_properties = lambda *_args: _Hopper  # type: ignore[assignment]
