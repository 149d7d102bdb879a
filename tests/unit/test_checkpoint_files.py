"""That a checkpoint appears whole or not at all, and which ones go."""

import errno

import pytest

from fixedcode_megatron.training import checkpoint_files as files
from fixedcode_megatron.training.checkpoint_integrity import COMMIT_MARK


def make_whole(root, iteration):
    path = files.checkpoint_path(root, iteration)
    path.mkdir(parents=True)
    (path / COMMIT_MARK).write_text('{"sharded_backend": "torch_dist"}')
    return path


def test_names(tmp_path):
    assert files.checkpoint_path(tmp_path, 10).name == "iter_0000010"
    assert files.checkpoint_path(tmp_path, 12345678).name == "iter_12345678"


def test_a_folder_without_commit_mark_is_no_checkpoint(tmp_path):
    files.checkpoint_path(tmp_path, 30).mkdir()
    assert files.whole_iterations(tmp_path) == []
    make_whole(tmp_path, 9)
    assert files.whole_iterations(tmp_path) == [9]


def test_publishing_moves_the_tracker_last(tmp_path, monkeypatch):
    """Case 29: where only the pointer cannot be written, the run before it can be continued."""
    make_whole(tmp_path, 10)
    (tmp_path / files.TRACKER).write_text("10\n")
    partial = files.prepare(tmp_path, 20)
    (partial / "data").write_bytes(b"x")
    (partial / COMMIT_MARK).write_text("{}")

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", fail)
        with pytest.raises(OSError, match="no space left"):
            files.publish(tmp_path, 20)
    assert files.read_tracker(tmp_path) == 10
    # Saving the same iteration again works, and moves it.
    partial = files.prepare(tmp_path, 20)
    (partial / COMMIT_MARK).write_text("{}")
    files.publish(tmp_path, 20)
    assert files.read_tracker(tmp_path) == 20
    assert not files.partial_path(tmp_path, 20).exists()
    assert not list(tmp_path.glob(".*"))


def test_a_leftover_does_not_block_the_next_save(tmp_path):
    """Case 28."""
    (files.prepare(tmp_path, 20) / "__0_0.distcp").write_bytes(b"half")
    assert list(files.prepare(tmp_path, 20).iterdir()) == []


@pytest.mark.parametrize(
    "options, left",
    [
        (dict(keep=None), [2, 4, 6, 8, 10, 12]),
        (dict(keep=2), [10, 12]),
        # Megatron-LM's meaning: multiples stay, and the last.
        (dict(keep=None, retain_interval=4), [4, 8, 12]),
        (dict(keep=None, retain_interval=8), [8, 12]),
        (dict(keep=3, retain_interval=4), [4, 8, 10, 12]),
        # Rewound: later ones belong to the future of another past.
        (dict(keep=1, newest=6), [6, 8, 10, 12]),
        (dict(keep=1, retain_interval=4, newest=6), [4, 6, 8, 10, 12]),
    ],
)
def test_which_old_ones_go(tmp_path, options, left):
    for iteration in (2, 4, 6, 8, 10, 12):
        make_whole(tmp_path, iteration)
    files.prepare(tmp_path, 14)
    files.write_atomically(tmp_path / files.TRACKER, "12\n")
    files.remove_old(tmp_path, **options)
    assert files.whole_iterations(tmp_path) == left
    assert not files.partial_path(tmp_path, 14).exists()


def test_what_the_tracker_names_and_what_lies_elsewhere_stays(tmp_path):
    elsewhere = make_whole(tmp_path / "other", 2)
    root = tmp_path / "save"
    for iteration in (4, 6, 8):
        make_whole(root, iteration)
    files.checkpoint_path(root, 2).symlink_to(elsewhere)
    (root / files.TRACKER).write_text("4\n")
    files.remove_old(root, keep=1)
    assert files.whole_iterations(root) == [2, 4, 8]
    assert (elsewhere / COMMIT_MARK).is_file()
