"""Data tools as programs: what ends them is said in one line."""

import pytest

from fixedcode_megatron.data.tool_runner import run_tool


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MemoryError(), "(MemoryError)"),
        (MemoryError("Unable to allocate 3.00 GiB"), "(Unable to allocate 3.00 GiB)"),
        (RuntimeError("can't start new thread"), "(can't start new thread)"),
    ],
)
def test_what_the_system_does_not_grant(error, named, capsys):
    assert run_tool(lambda: fail(error), writes=True) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: memory or threads ran out {named}: allow this job more")
    assert "fewer --workers; nothing was left" in said and said.count("\n") == 1


def test_other_errors_are_defects_and_stay_visible():
    with pytest.raises(RuntimeError, match="a defect"):
        run_tool(lambda: fail(RuntimeError("a defect")), writes=True)
