"""A smaller model to start from: the first layers of a trained one.

Ablations on few cores need an encoder of few layers that is not random. The embeddings and the
first layers of a trained one are such a start (as those of a student are in DistilBERT: Sanh et
al., 2019); what is left out has to be learnt again.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from retrievers.models.card import CARD_FILE, Card, write_card

LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
NOT_COPIED = (".safetensors", ".bin", "card.toml")


def truncated(model: str, layers: int, folder: Path) -> Path:
    """A checkpoint with the first layers of a model, made once.

    Args:
        model: card, folder or Hub id of a BERT or RoBERTa with a ``model.safetensors``.
        layers: how many are kept.
        folder: below which it is made.

    Raises:
        BenchError: the model has no more layers than that, or no such file.
        BenchError: there is no such model.
    """
    from retrievers.training.engine.save import find_checkpoint

    checkpoint, trained_on = find_checkpoint(model)
    out = folder / f"{checkpoint.weights_sha256[:12]}-{layers}"
    if (out / CARD_FILE).is_file():
        return out
    config = {**checkpoint.config, "num_hidden_layers": layers}
    if checkpoint.config.get("num_hidden_layers", 0) <= layers:
        raise BenchError(
            f"{model} has {checkpoint.config.get('num_hidden_layers', 'no')} layers, and "
            f"first_layers is {layers}",
            "leave first_layers out, or make it smaller",
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in checkpoint.folder.iterdir():
        if path.is_file() and not path.name.endswith(NOT_COPIED):
            shutil.copyfile(path, out / path.name)
    (out / "modules.json").unlink(missing_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _write_weights(checkpoint.folder / checkpoint.weights, layers, out)
    title = f"the first {layers} layers of {Path(model).name}"
    card = Card(name="card", title=title, checkpoint=".", pooling="cls", trained_on=trained_on)
    write_card(card, out)
    return out


def _write_weights(source: Path, layers: int, out: Path) -> None:
    from safetensors.torch import load_file, save_file

    if source.suffix != ".safetensors":
        raise BenchError(f"{source} is no safetensors file, which first_layers reads")
    kept = {
        name: tensor for name, tensor in load_file(str(source)).items() if _is_kept(name, layers)
    }
    save_file(kept, str(out / "model.safetensors"), metadata={"format": "pt"})


def _is_kept(name: str, layers: int) -> bool:
    layer = LAYER.search(name)
    return layer is None or int(layer[1]) < layers


def start_of(settings: Mapping[str, Any], cache_dir: Path) -> dict[str, Any]:
    """The table ``start`` of a pre-training; with ``first_layers``, of the truncated model.

    Raises:
        BenchError: see `truncated`.
    """
    start: dict[str, Any] = dict(settings["start"])
    layers = settings.get("first_layers")
    if layers is None:
        return start
    return {**start, "model": str(truncated(start["model"], layers, cache_dir / "truncated"))}
