"""Write token ids, states and vectors of a model: ``python stack_probe.py JOB.json OUT``.

The interpreter needs torch and transformers, and sentence-transformers for folders of its form.
Nothing of this program is imported, and the syntax is that of Python 3.8. OUT is a .npz file with
vectors, and with token ids and the properties that vectors depend on as JSON. Each line of the
output is a number of texts that were encoded.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035

import numpy as np
import torch

STEP = 32  # texts between two lines of progress
LIBRARIES = ("transformers", "sentence-transformers", "tokenizers", "torch")
MOST = 64  # tokens of which hidden states are compared
# Tokenizer, network, function of texts and their role, and properties.
Opened = Tuple[Any, Any, Callable[[List[str], str], Any], Dict[str, Any]]  # noqa: UP006


def main(job_path: str, out_path: str) -> None:
    """Read the job, load the model, and write its arrays and properties."""
    with open(job_path, encoding="utf-8") as file:  # noqa: PTH123
        job = json.load(file)
    if job["device"] == "auto":
        job["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, network, encode, properties = (_open_st if job["modules"] else _open_plain)(job)
    properties["libraries"] = {name: _version(name) for name in LIBRARIES}
    properties.update(_tokenizer_properties(tokenizer, job["probe"]))
    tokens = [row[:MOST] for row in job["tokens"] or properties["whole"]]
    properties.update(_network_properties(network, tokens[0]))
    arrays: dict[str, Any] = {"states": np.array([_states(network, row).mean(0) for row in tokens])}
    for name, texts in job["texts"].items():
        order = np.argsort([len(text) for text in texts], kind="stable")  # for little padding
        parts = [order[start : start + STEP] for start in range(0, len(texts), STEP)]
        vectors = [_encode_part(encode, [texts[row] for row in part], name) for part in parts]
        arrays[name] = np.concatenate(vectors)[np.argsort(order)]
    np.savez(out_path, properties=np.array(json.dumps(properties, default=str)), **arrays)


def _encode_part(encode: Any, texts: list[str], name: str) -> Any:
    """Encode texts in the role that ends ``name``, and print their number."""
    vectors = encode(texts, name.split()[-1])
    print(len(texts), flush=True)
    return vectors


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _open_st(job: dict[str, Any]) -> Opened:
    """Open a folder of sentence-transformers as a user of that library does."""
    from sentence_transformers import SentenceTransformer

    safely = {"local_files_only": True, "model_kwargs": {"weights_only": True}}
    model = SentenceTransformer(job["folder"], device=job["device"], **safely)

    def encode(texts: list[str], role: str) -> Any:
        function = getattr(model, "encode_" + role, None)  # since version 5
        if function is None:
            name = role if role in (model.prompts or {}) else None
            return np.asarray(model.encode(texts, prompt_name=name), np.float32)
        return np.asarray(function(texts), np.float32)

    modules = {}
    for place, module in enumerate(model):
        settings = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        modules[place] = dict(settings, type=type(module).__name__)
    properties = {
        "max_tokens": model.max_seq_length,
        "prompts": dict(model.prompts or {}),
        "default_prompt": model.default_prompt_name,
        "similarity": str(getattr(model, "similarity_fn_name", None)),
        "modules": modules,
    }
    if not hasattr(model[0], "auto_model"):
        sys.exit("it does not begin with a transformer, whose states --stack compares")
    return model.tokenizer, model[0].auto_model, encode, properties


def _open_plain(job: dict[str, Any]) -> Opened:
    """Open a folder of transformers with the pooling, length and prompts of a card."""
    from transformers import AutoModel, AutoTokenizer

    local = {"trust_remote_code": False, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(job["folder"], **local)
    network = AutoModel.from_pretrained(job["folder"], **local).to(job["device"]).eval()

    def encode(texts: list[str], role: str) -> Any:
        rows = []
        with torch.inference_mode():
            for text in texts:
                cut = {"truncation": True, "max_length": job["max_tokens"][role] or None}
                tokens = tokenizer(job["prompts"][role] + text, return_tensors="pt", **cut)
                tokens = tokens.to(job["device"])
                states = network(**tokens)[0][0].float()
                pooled = {"cls": states[0], "last": states[-1]}.get(job["pooling"], states.mean(0))
                if job["normalize"]:
                    pooled = torch.nn.functional.normalize(pooled, dim=0)
                rows.append(pooled.cpu().numpy())
        return np.array(rows, np.float32)

    return tokenizer, network, encode, {}


def _states(network: Any, tokens: list[int]) -> Any:
    """Return the last hidden states of token ids, float32 ``(n, width)``."""
    with torch.inference_mode():
        row = torch.tensor([tokens], device=network.device)
        output = network(input_ids=row, attention_mask=torch.ones_like(row))
    return output[0][0].float().cpu().numpy()


def _tokenizer_properties(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = [type(getattr(backend, n, None)) for n in ("normalizer", "pre_tokenizer", "model")]
    names = ", ".join(step.__name__ for step in steps if step is not type(None))
    bare = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    unknown = [token == tokenizer.unk_token_id for row in bare for token in row]
    return {
        "tokenizer": f"{type(tokenizer).__name__.replace('Fast', '')} ({names or 'slow'})",
        "special": " ".join(tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"])),
        "unknown": float(np.mean(unknown)),
        "whole": tokenizer(texts, verbose=False)["input_ids"],
        "bare": bare,
    }


def _network_properties(network: Any, tokens: list[int]) -> dict[str, Any]:
    rotary = {
        round(float(values.double().sum()), 6)
        for name, values in network.named_buffers()
        if name.endswith("inv_freq")
    }
    first = [_states(network, row)[0] for row in (tokens, tokens[:1] * len(tokens))]
    return {
        "network": type(network).__name__,
        "dtype": str(network.dtype).replace("torch.", ""),
        "attention": getattr(network.config, "_attn_implementation", None),
        "direction": "causal" if np.allclose(first[0], first[1], atol=1e-6) else "bidirectional",
        "rotary": " ".join(map(str, sorted(rotary))),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
