"""A program that has nothing but transformers: greedy continuations by exported folders, as JSON.

usage: offline_greedy.py NEW_TOKENS IDS FOLDER ...
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

results = []
for folder in sys.argv[3:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids = torch.tensor([[int(word) for word in sys.argv[2].split()]])
    output = model.generate(
        ids, do_sample=False, max_new_tokens=int(sys.argv[1]), pad_token_id=0, eos_token_id=None
    )
    results.append(output[0, ids.shape[1] :].tolist())
assert not any(name.startswith(("fixedcode_megatron", "megatron")) for name in sys.modules)
print(json.dumps(results))
