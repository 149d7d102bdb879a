"""The W&B run that a run folder belongs to."""

import sys
import types

from fixedcode_megatron.config.tree import default_config
from fixedcode_megatron.training.reporters import open_wandb


def test_a_relaunch_goes_on_with_the_same_run(tmp_path, monkeypatch):
    calls = []
    module = types.SimpleNamespace(init=lambda **options: calls.append(options))
    monkeypatch.setitem(sys.modules, "wandb", module)
    cfg = default_config()
    assert open_wandb(cfg, tmp_path, 0) is None and not calls
    cfg.set("wandb_project", "codes")
    open_wandb(cfg, tmp_path, 0)
    open_wandb(cfg, tmp_path, 20)  # resumed
    open_wandb(cfg, tmp_path, None)  # evaluated
    open_wandb(cfg, tmp_path, 0)  # anew, in the same folder
    ids = [call["id"] for call in calls]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert all(call["resume"] == "allow" and call["project"] == "codes" for call in calls)
