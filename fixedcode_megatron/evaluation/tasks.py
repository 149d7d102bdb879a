"""Finding the harness's tasks and loading their data, before a model is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lm_eval.tasks import TaskManager

from fixedcode_megatron.errors import UserError


class LoadedTasks(TaskManager):
    """Tasks with their data, under the interface that the harness asks for them.

    Parameters
    ----------
    names
        Tasks, groups or tags.
    include_path
        A folder of tasks (YAML files) beside the harness's own; its names come first.

    Raises
    ------
    UserError
        If a task is unknown, its files are damaged, or its data cannot be had.
    """

    def __init__(self, names: Sequence[str], include_path: Path | None = None) -> None:
        if include_path is not None:
            _check_files(include_path)
        self._build_index(names, include_path)
        self._loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
        for name in names:
            for part, found in self._load_one(name).items():
                self._loaded[part] |= found

    def load(self, task_list: Any) -> Any:
        """All tasks, whatever is asked for: they were named before."""
        return self._loaded

    def _build_index(self, names: Sequence[str], include_path: Path | None) -> None:
        """The harness's own 14,000 tasks are left alone where the folder has all that is wanted."""
        path = None if include_path is None else str(include_path)
        if path is not None:
            super().__init__(include_path=path, include_defaults=False)
            if set(names) <= set(self.all_subtasks):
                return
        super().__init__(include_path=path)
        for name in names:
            if name not in self.task_index:
                close = difflib.get_close_matches(name, self.all_tasks, n=3)
                hint = f"did you mean {', '.join(close)}?" if close else "see --include-path"
                raise UserError(f"--tasks {name}: the harness knows no such task; {hint}")

    def _load_one(self, name: str) -> dict[str, Any]:
        try:
            return dict(super().load([name]))
        except Exception as error:  # whatever datasets and the task's own code raise
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"--tasks {name}: its data could not be loaded ({reason[0]}); it is downloaded "
                "once, into the folder that HF_HOME names. Where that cannot be, copy the folder "
                "from elsewhere, or give a task with local files by --include-path "
                "(docs/evaluation.md)"
            ) from error


def _check_files(folder: Path) -> None:
    """Refuse what the harness would pass over in silence."""
    if not folder.is_dir():
        raise UserError(f"--include-path {folder} is no folder")
    for path in sorted(folder.rglob("*.yaml")):
        try:
            yaml.compose(path.read_text("utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"--include-path: {path} is damaged: {error}") from error
