"""Which checkpoint is loaded, and what is said where that one is damaged."""

import logging

import pytest

from fixedcode_megatron.errors import UserError
from fixedcode_megatron.training import checkpoint_files as files
from fixedcode_megatron.training import checkpoint_integrity as integrity
from fixedcode_megatron.training.checkpoint_choice import find_checkpoint

DATA = "__0_0.distcp"


def make_whole(root, iteration, *, checksums=False, recorded=True):
    path = files.checkpoint_path(root, iteration)
    path.mkdir(parents=True)
    for name in (DATA, "__1_0.distcp", ".metadata", "common.pt"):
        (path / name).write_bytes(f"{name} {iteration}".encode() * 100)
    (path / integrity.COMMIT_MARK).write_text('{"sharded_backend": "torch_dist"}')
    if recorded:
        integrity.record(path, checksums=checksums)
    return path


@pytest.fixture
def root(tmp_path):
    """Checkpoints of iterations 10, 20 and 30; the tracker says 30."""
    for iteration in (10, 20, 30):
        make_whole(tmp_path, iteration)
    track(tmp_path, 30)
    return tmp_path


def track(root, text):
    (root / files.TRACKER).write_text(f"{text}\n")


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def change(path):
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "data missing": (lambda p: (p / DATA).unlink(), "__0_0.distcp is missing"),
    "data cut off": (lambda p: shorten(p / DATA), "__0_0.distcp has 1,499 bytes instead of 1,500"),
    "data empty": (lambda p: empty(p / DATA), "__0_0.distcp has 0 bytes instead of 1,500"),
    "commit mark empty": (lambda p: empty(p / "metadata.json"), "cannot be read"),
    "commit mark bad": (lambda p: (p / "metadata.json").write_text("{}"), "names no format"),
    "common state missing": (lambda p: (p / "common.pt").unlink(), "common.pt is missing"),
    "plan missing": (lambda p: (p / ".metadata").unlink(), ".metadata is missing"),
    "record bad": (lambda p: (p / "integrity.json").write_text("[]"), "cannot be read"),
    "folder missing": (lambda p: p.rename(p.with_name("gone")), "the folder is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_the_newest_whole_one_before_a_damaged_one_is_taken(root, caplog, kind):
    """One warning names the damaged one and what was wrong with it."""
    damage, words = DAMAGES[kind]
    damage(files.checkpoint_path(root, 30))
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(root) == files.checkpoint_path(root, 20)
    [record] = caplog.records
    for word in (words, "iter_0000030 is damaged", "going on from", "iter_0000020"):
        assert word in record.getMessage()


def test_several_damaged_ones_are_told_at_once(root, caplog):
    empty(files.checkpoint_path(root, 30) / DATA)
    (files.checkpoint_path(root, 20) / ".metadata").unlink()
    assert find_checkpoint(root) == files.checkpoint_path(root, 10)
    [record] = caplog.records
    assert "iter_0000030 is damaged: __0_0" in record.getMessage()
    assert "iter_0000020 is damaged: .metadata" in record.getMessage()


def test_nothing_whole_left_is_an_error_not_a_fresh_start(root):
    for iteration in (10, 20, 30):
        empty(files.checkpoint_path(root, iteration) / DATA)
    with pytest.raises(UserError, match=r"iter_0000010 is damaged.*No whole checkpoint is left"):
        find_checkpoint(root)


def test_later_ones_are_offered_not_taken(root):
    track(root, 10)
    empty(files.checkpoint_path(root, 10) / DATA)
    with pytest.raises(UserError, match=r"choose with --ckpt-step: 20, 30"):
        find_checkpoint(root)


def test_an_iteration_that_was_asked_for_is_never_exchanged(root):
    shorten(files.checkpoint_path(root, 20) / "common.pt")
    with pytest.raises(UserError, match=r"--ckpt-step 20: .*common.pt has.*whole ones: 10, 20, 30"):
        find_checkpoint(root, 20)
    with pytest.raises(UserError, match=r"--ckpt-step 999.*missing.*whole ones: 10, 20, 30"):
        find_checkpoint(root, 999)
    assert find_checkpoint(root, 10) == files.checkpoint_path(root, 10)


def test_nothing_there(tmp_path):
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "missing") is None


def test_the_tracker_decides(root, caplog):
    track(root, 10)  # 20 and 30 were written, but the tracker had not moved
    assert find_checkpoint(root) == files.checkpoint_path(root, 10)
    assert not caplog.records


@pytest.mark.parametrize("said", [None, "", "abc"])
def test_without_a_usable_tracker_the_newest_whole_one_is_taken(root, caplog, said):
    """The job died between its first checkpoint's last byte and the tracker."""
    (root / files.TRACKER).unlink()
    if said is not None:
        track(root, said)
    assert find_checkpoint(root) == files.checkpoint_path(root, 30)
    [record] = caplog.records
    assert files.TRACKER in record.getMessage()


def test_an_unfinished_save_is_mentioned(root, caplog):
    """Case 28."""
    files.prepare(root, 40)
    assert find_checkpoint(root) == files.checkpoint_path(root, 30)
    [record] = caplog.records
    assert ".iter_0000040.partial was never finished" in record.getMessage()


def test_a_changed_byte_is_found_by_checksum(tmp_path, caplog):
    make_whole(tmp_path, 10)
    path = make_whole(tmp_path, 20, checksums=True)
    track(tmp_path, 20)
    change(path / DATA)
    assert find_checkpoint(tmp_path) == path
    assert find_checkpoint(tmp_path, checksums=True) == files.checkpoint_path(tmp_path, 10)
    told = [record.getMessage() for record in caplog.records]
    assert any("the content of __0_0.distcp has changed" in text for text in told)
    assert any("was saved without --verify-integrity" in text for text in told)


def test_a_checkpoint_without_a_record(tmp_path, caplog):
    """Megatron-LM's, or one of ours from before there was a record."""
    make_whole(tmp_path, 10, recorded=False)
    path = make_whole(tmp_path, 20, recorded=False)
    track(tmp_path, 20)
    assert find_checkpoint(tmp_path) == path
    empty(path / DATA)
    assert find_checkpoint(tmp_path) == files.checkpoint_path(tmp_path, 10)
    assert "__0_0.distcp is empty" in caplog.text


def test_one_checkpoint_by_its_folder_and_a_release(tmp_path):
    path = make_whole(tmp_path, 10, recorded=False)
    assert find_checkpoint(path) == path
    release = path.rename(tmp_path / "release")
    track(tmp_path, "release")
    assert find_checkpoint(tmp_path) == release
