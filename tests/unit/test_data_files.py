"""Files that appear whole or not at all."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fixedcode_megatron.data.files import write_text_whole


def test_what_a_killed_process_left_is_taken(tmp_path):
    (tmp_path / ".a.json.partial").write_text("longer than what comes now")
    write_text_whole(tmp_path / "a.json", "né")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.json": b"n\xc3\xa9"}


def test_many_write_the_same_file(tmp_path):
    """Each opens it by itself, as processes do; one text is left, and it is whole."""
    texts = [str(i) * 100_000 for i in range(10)]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: write_text_whole(tmp_path / "a", text), texts * 3))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() in texts


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    write_text_whole(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text_whole(tmp_path / "a", "\ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"
