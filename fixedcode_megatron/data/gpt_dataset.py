"""Samples of `sequence_length` + 1 tokens, on megatron-core's GPTDataset. Imports megatron-core.

megatron-core decides which tokens make up which sample, in which order. Masks and positions are
made here: padding goes by position, not by an id that may also be a real token.
"""

from __future__ import annotations

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset

from fixedcode_megatron.data.plans import MAX_EPOCHS
from fixedcode_megatron.data.segments import attention_mask, positions


class TokenDataset(GPTDataset):
    """A GPTDataset whose samples are exact: no real token is ever taken for padding.

    `dataset[i]` is a dict of `tokens`, `labels` (tokens shifted by one), `position_ids`, int64
    [s], `loss_mask`, float32 [s], and, with `reset_attention_mask`, `attention_mask`, bool
    [1, s, s], True where attention is *not* allowed.
    """

    def __getitem__(self, idx: int) -> dict[str, torch.Tensor]:
        # A sample cut short by the end of the data is filled up with -1, which no file holds.
        text = torch.from_numpy(self._query_document_sample_shuffle_indices(idx)[0])
        padding = text < 0
        text = text.masked_fill(padding, 0)
        tokens, labels = text[:-1].contiguous(), text[1:].contiguous()
        eod, config = self.config.tokenizer.eod, self.config
        loss_mask = (~padding[1:]).to(torch.float32)
        if config.eod_mask_loss:
            loss_mask[(tokens == eod) & ~padding[:-1]] = 0.0
        sample = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask}
        sample["position_ids"] = positions(tokens, eod if config.reset_position_ids else None)
        if config.reset_attention_mask:
            sample["attention_mask"] = attention_mask(tokens, eod)
        return sample

    def _get_num_epochs(self, num_tokens_per_epoch: int) -> int:
        """Passes over the documents that the wanted samples need.

        The stock method counts up in a loop, which does not end for a split without tokens.
        """
        if self.num_samples is None:
            return 1
        wanted = self.num_samples * self.config.sequence_length + 1
        assert num_tokens_per_epoch > 0, "build_datasets refuses empty splits"
        epochs = max(1, -(-wanted // num_tokens_per_epoch))
        assert epochs <= MAX_EPOCHS, "build_datasets refuses tiny splits"
        return epochs

    def index_arrays(self) -> dict[str, np.ndarray]:
        """What megatron-core keeps in its cache, by the names of the files."""
        base = f"{self.unique_description_hash}-{type(self).__name__}-{self.index_split.name}"
        return {
            f"{base}-document_index.npy": self.document_index,
            f"{base}-sample_index.npy": self.sample_index,
            f"{base}-shuffle_index.npy": self.shuffle_index,
        }
