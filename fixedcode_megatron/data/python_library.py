"""Documents that every CPython has: its documentation topics, docstrings and library sources.

Each module gives two documents: its docstrings as prose, and its source without them, so that no
passage is in both. Modules are parsed, not imported.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Folders of the library that are tests, tools' data, other people's packages or tables.
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__", "dist-packages", "encodings", "ensurepip", "idle_test", "lib-dynload",
        "pydoc_data", "site-packages", "test", "tests",
    }
)  # fmt: skip
SKIPPED_MODULES = frozenset(
    {"stringprep.py", "html/entities.py", "pickletools.py", "sitecustomize.py"}
)
_SMALLEST, _LARGEST = 200, 400_000  # characters of a document


@dataclass(frozen=True)
class Document:
    """A text and where it comes from, such as `docs:with` or `json/decoder.py`."""

    source: str
    text: str

    @property
    def kind(self) -> str:
        """docs, docstrings or code."""
        return self.source.split(":")[0] if ":" in self.source else "code"


def library_documents() -> Iterator[Document]:
    """All documents, in an order that depends on nothing but their names."""
    yield from _topics()
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        if not _is_skipped(name):
            yield from _module_documents(path, name)


def _is_skipped(name: str) -> bool:
    folders = name.split("/")[:-1]
    generated = name.startswith("_sysconfigdata") or any(f.startswith("config-") for f in folders)
    return generated or name in SKIPPED_MODULES or not SKIPPED_FOLDERS.isdisjoint(folders)


def _topics() -> Iterator[Document]:
    """The language reference, as `help("with")` shows it; some builds of Python lack it."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    for name in sorted(topics):
        if len(topics[name]) >= _SMALLEST:
            yield Document(f"docs:{name}", topics[name].strip() + "\n")


def _module_documents(path: Path, name: str) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources hold invalid escapes
            tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return
    prose, lines = _split_docstrings(tree, text, name)
    code = "\n".join(lines).strip("\n") + "\n"
    if _SMALLEST <= len(prose) <= _LARGEST:
        yield Document(f"docstrings:{name}", prose)
    if _SMALLEST <= len(code) <= _LARGEST:
        yield Document(name, code)


def _split_docstrings(tree: ast.Module, text: str, name: str) -> tuple[str, list[str]]:
    """Prose made of all docstrings, each under the name it documents, and the other lines."""
    lines = text.split("\n")
    sections: list[str] = []
    dropped: set[int] = set()

    def visit(node: ast.AST, title: str) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                sections.append(f"{title}\n\n{docstring}\n")
                expression = node.body[0]
                dropped.update(range(expression.lineno - 1, expression.end_lineno or 0))
        for child in ast.iter_child_nodes(node):
            inner = f"{title}.{child.name}" if hasattr(child, "name") and child.name else title
            visit(child, inner)

    visit(tree, name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    kept = [line.rstrip() for number, line in enumerate(lines) if number not in dropped]
    return "\n".join(sections), kept
