"""Random states in checkpoints are tensors, whichever kind the tracker of the run keeps."""

import torch

from fixedcode_megatron.training.checkpoint_state import plain_states, restored_states


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(state):
    """Five numbers that follow from a state of either kind."""
    if isinstance(state, torch.Tensor):
        own = torch.Generator()
        own.set_state(state)
        state = own
    return torch.rand(5, generator=state).tolist()


def test_generators_are_saved_as_tensors():
    running = generator(1)
    torch.rand(3, generator=running)
    saved = plain_states({"model": running, "data": generator(2).get_state()})
    assert all(isinstance(state, torch.Tensor) for state in saved.values())
    assert draw(saved["model"]) == draw(running)
    assert draw(saved["data"]) == draw(generator(2))


def test_a_tracker_of_generators_keeps_them():
    """A graph knows a generator by identity, so that a restored state must be in the same one."""
    own = generator(5)
    restored = restored_states({"model": own}, {"model": generator(1).get_state()})
    assert restored["model"] is own
    assert draw(own) == draw(generator(1))


def test_a_tracker_of_tensors_gets_tensors():
    current = {"model": generator(5).get_state()}
    for saved in (generator(1), generator(1).get_state()):
        restored = restored_states(current, {"model": saved})
        assert isinstance(restored["model"], torch.Tensor)
        assert draw(restored["model"]) == draw(generator(1))
