"""Data tools run on a machine without torch, megatron-core or triton, and start quickly for it."""

import subprocess
import sys

CODE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "megatron", "triton", "transformers"):
            raise ImportError("not on this machine: " + name)
sys.meta_path.insert(0, Refuse())
from fixedcode_megatron.data import blend, bpe, command_line, plans, recipes, token_check
from fixedcode_megatron.data.command_line import preprocess_main
sys.exit(preprocess_main(sys.argv[1:]))
"""


def test_preprocessing_imports_neither_torch_nor_megatron(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text":"hi"}\n')
    flags = ["--input", tmp_path / "x.jsonl", "--output-prefix", tmp_path / "o"]
    flags += ["--tokenizer-type", "ByteLevelTokenizer", "--workers", "0"]
    done = subprocess.run([sys.executable, "-c", CODE, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o_text_document.bin").read_bytes() == b"h\0i\0"


def test_data_tools_start_quickly():
    """CPU seconds, so that a busy machine does not matter; Megatron-LM's tool takes 6 to 7."""
    code = "import fixedcode_megatron.data.command_line, time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
