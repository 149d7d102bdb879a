"""Which checkpoint is found, and that one appears whole or not at all."""

import pytest

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training import checkpoint_files as files


def make_whole(root, iteration):
    path = files.checkpoint_path(root, iteration)
    path.mkdir(parents=True)
    (path / files.COMMIT_MARK).write_text("{}")
    return path


def test_names(tmp_path):
    assert files.checkpoint_path(tmp_path, 10).name == "iter_0000010"
    assert files.checkpoint_path(tmp_path, 12345678).name == "iter_12345678"


def test_nothing_there(tmp_path):
    assert files.find_checkpoint(tmp_path) is None
    assert files.find_checkpoint(tmp_path / "missing") is None


def test_the_tracker_decides(tmp_path):
    ten = make_whole(tmp_path, 10)
    make_whole(tmp_path, 20)  # written, but the tracker had not moved
    (tmp_path / files.TRACKER).write_text("10\n")
    assert files.find_checkpoint(tmp_path) == ten
    assert files.find_checkpoint(tmp_path, 20) == files.checkpoint_path(tmp_path, 20)
    assert files.whole_iterations(tmp_path) == [10, 20]


def test_a_missing_iteration_is_named_with_those_that_exist(tmp_path):
    make_whole(tmp_path, 10)
    with pytest.raises(UserError, match=r"--ckpt-step 999.*whole ones: 10"):
        files.find_checkpoint(tmp_path, 999)


def test_a_folder_without_commit_mark_is_no_checkpoint(tmp_path):
    files.checkpoint_path(tmp_path, 30).mkdir()
    assert files.whole_iterations(tmp_path) == []
    with pytest.raises(UserError, match="not a whole checkpoint"):
        files.find_checkpoint(tmp_path, 30)


def test_a_broken_tracker_is_named(tmp_path):
    make_whole(tmp_path, 10)
    (tmp_path / files.TRACKER).write_text("release\n")
    with pytest.raises(UserError, match=r"'release'.*--ckpt-step"):
        files.find_checkpoint(tmp_path)


def test_publishing_moves_the_tracker_last(tmp_path, monkeypatch):
    make_whole(tmp_path, 10)
    (tmp_path / files.TRACKER).write_text("10\n")
    partial = files.prepare(tmp_path, 20)
    (partial / "data").write_bytes(b"x")
    (partial / files.COMMIT_MARK).write_text("{}")
    assert files.find_checkpoint(tmp_path) == files.checkpoint_path(tmp_path, 10)

    def fail(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", fail)
        with pytest.raises(OSError):
            files.publish(tmp_path, 20)
    assert files.read_tracker(tmp_path) == 10
    # Saving the same iteration again works, and moves it.
    partial = files.prepare(tmp_path, 20)
    (partial / files.COMMIT_MARK).write_text("{}")
    files.publish(tmp_path, 20)
    assert files.read_tracker(tmp_path) == 20
    assert not files.partial_path(tmp_path, 20).exists()


def test_old_ones_and_leftovers_go(tmp_path):
    for iteration in (2, 4, 6, 10):
        make_whole(tmp_path, iteration)
    files.prepare(tmp_path, 8)
    files.remove_old(tmp_path, keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["iter_0000006", "iter_0000010"]
