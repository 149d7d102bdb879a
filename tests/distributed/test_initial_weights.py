"""The record of initial weights: the same at any layout, other for other weights."""

import json

import pytest
import torch

from fixedcode_megatron.training.initial_weights import (
    _chunks,
    _coefficients,
    read_initial_weights,
)

pytestmark = pytest.mark.distributed


def recorded(train, flags, ranks=1):
    run = train(f"--train-iters 1 --eval-iters 0 --lr-warmup-iters 0 {flags}", ranks=ranks)
    assert run.status == 0
    return read_initial_weights(run.folder)


def test_every_layout_and_interface_starts_alike(train):
    alone = recorded(train, "--input-interface learned")
    # A table and a head of 512 x 72; in a layer QKV 72 x 216, projection, MLP of three matrices of
    # 72 x 96, two norms; the final norm.
    layers = 4 * (72 * 216 + 72 * 72 + 3 * 72 * 96 + 2 * 72) + 72
    counts = {part: values["parameters"] for part, values in alone.items()}
    assert counts == {"input": 512 * 72, "layers": layers, "head": 512 * 72}
    split = "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
    assert recorded(train, f"--input-interface learned {split}", ranks=4) == alone
    sharded = "--input-interface binary --use-distributed-optimizer"
    binary = recorded(train, sharded, ranks=2)
    assert binary == alone | {"input": {"parameters": 0, "checksum": "0" * 16}}
    other = recorded(train, "--input-interface binary --seed 8")
    assert other["layers"]["checksum"] != binary["layers"]["checksum"]
    assert other["head"]["checksum"] != binary["head"]["checksum"]


class Shard:
    """The piece [1:3, 0:2] of layer 1 of 2 of a stacked [2, 4, 3] tensor."""

    data = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    global_shape, global_offset = (2, 4, 3), (1, 1, 0)
    local_shape, prepend_axis_num = (2, 2), 1


def test_elements_are_placed_in_the_whole_tensor():
    ((places, values),) = _chunks(Shard())
    assert places.tolist() == [12 + 3, 12 + 4, 12 + 6, 12 + 7]
    # IEEE 754: 1.0 is 0x3F800000, 2.0 0x40000000, 3.0 0x40400000, -1.0 0xBF800000 as int32.
    assert values.tolist() == [0x3F800000, 0x40000000, 0x40400000, 0xBF800000 - 2**32]


def test_equal_values_at_other_places_or_of_other_tensors_count_differently():
    places = torch.arange(100_000)
    one, other = _coefficients(places, "a.weight"), _coefficients(places, "b.weight")
    assert one.unique().numel() == other.unique().numel() == 100_000
    assert not bool((one == other).any()) and bool((one % 2 == 1).all())


def test_a_resumed_run_keeps_the_record(train, tmp_path):
    flags = f"--input-interface gf2 --save {tmp_path} --load {tmp_path} --train-iters 2 "
    flags += "--eval-iters 0 --lr-warmup-iters 0"
    assert train(f"{flags} --exit-interval 1", folder=tmp_path).status == 0
    path = tmp_path / "initial_weights.json"
    path.write_text(json.dumps({"kept": True}))
    again = train(flags, folder=tmp_path)
    assert again.status == 0 and len(again.rows()) == 2
    assert json.loads(path.read_text()) == {"kept": True}
