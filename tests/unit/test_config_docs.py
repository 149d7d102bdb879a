"""docs/configuration.md lists what there is."""

from pathlib import Path

from fixedcode_megatron.config.reference import megatron_flags, tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_holds_the_tables_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    hint = "paste the output of python -m fixedcode_megatron.config.reference into the page"
    assert tables() in text, hint
    assert megatron_flags() in text, hint
