"""The commands of docs/data.md are ones that the tools take."""

import re
import shlex
from pathlib import Path

import pytest

from fixedcode_megatron.config.cli import read
from fixedcode_megatron.data import (
    blend_command,
    command_line,
    inspect_command,
    merge_command,
    split_command,
)

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
PARSERS = {
    "preprocess_data": command_line._preprocess_parser,
    "merge_datasets": merge_command._parser,
    "inspect_dataset": inspect_command._parser,
    "split_dataset": split_command._parser,
    "blend": blend_command._parser,
}


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").replace("$SLURM_ARRAY_TASK_ID", "3")
    return [line.removeprefix("srun ") for line in lines.splitlines() if "tools/" in line]


@pytest.mark.parametrize("command", commands())
def test_command(command, capsys):
    program, script, *flags = shlex.split(command)
    assert program == "python" and (DOCS.parents[1] / script).is_file()
    name = Path(script).stem
    if name == "build_sample_index":
        assert read(flags)[1] == []
    else:
        PARSERS[name]().parse_args(flags)


def test_every_tool_of_the_page_is_shown_or_listed():
    assert len(commands()) >= 12
    page = DOCS.read_text(encoding="utf-8")
    for name in re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE):
        assert (DOCS.parents[1] / "tools" / name).is_file()
