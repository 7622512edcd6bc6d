"""The reference: Hugging Face's own network, with padding, and the mean of its tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.gpu_proof.agreement import Floats

BATCH = 32


def token_ids(folder: Path, texts: Sequence[str], most: int) -> list[list[int]]:
    """Ids of each text, cut to ``most`` tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
    return ids


def network_of(folder: Path, dtype: str, device: str) -> Any:
    """The network, its weights in ``dtype``."""
    from transformers import AutoModel

    network = AutoModel.from_pretrained(str(folder), local_files_only=True)
    return network.to(device=device, dtype=getattr(torch, dtype)).eval()


@torch.inference_mode()
def vectors(network: Any, ids: Sequence[Sequence[int]]) -> Floats:
    """Unit vectors, the mean over the tokens of each text, float32 ``(n, width)``."""
    place = next(network.parameters()).device
    pad = network.config.pad_token_id or 0
    order = np.argsort([len(row) for row in ids])
    found = np.empty((len(ids), network.config.hidden_size), np.float32)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        longest = max(len(ids[row]) for row in rows)
        tokens = torch.full((len(rows), longest), pad)
        mask = torch.zeros(len(rows), longest)
        for line, row in enumerate(rows):
            tokens[line, : len(ids[row])] = torch.tensor(ids[row])
            mask[line, : len(ids[row])] = 1
        mask = mask.to(place)
        hidden = network(tokens.to(place), attention_mask=mask.long()).last_hidden_state.float()
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        found[rows] = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
    return found
