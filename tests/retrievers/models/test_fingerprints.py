"""Fingerprints of the shipped cards, as commit c7af70d gives them: stored vectors hang on them.

A card that is added need not be pinned here; one that is here must keep its fingerprint.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from retrievers.models.model import resolve_model
from retrievers.models.recipe import AdapterIdentity, Recipe

WIDTH = 768
FILES = {"config.json": "aa", "model.safetensors": "bb", "tokenizer.json": "cc"}
PINNED = {
    "ance": "8d3550921ba39027",
    "ance-pyserini": "0f08b1040f69ecaa",
    "bert": "4b6aaaf94b810f99",
    "bge-base": "77f41708fe608c97",
    "cocondenser-ft": "c35bd8bfef348ab8",
    "cocondenser-marco": "4b6aaaf94b810f99",
    "cocondenser-wiki": "4b6aaaf94b810f99",
    "condenser": "4b6aaaf94b810f99",
    "contriever": "62bea9ba0d2c1ef5",
    "contriever-msmarco": "62bea9ba0d2c1ef5",
    "cotmae": "4b6aaaf94b810f99",
    "cotmae-msmarco-ft": "c35bd8bfef348ab8",
    "deberta": "4b6aaaf94b810f99",
    "diffcse": "ebe10a2dfa532868",
    "gtr-base": "a1661fc8decc3ca8",
    "gtr-large": "a1661fc8decc3ca8",
    "gtr-xl": "a1661fc8decc3ca8",
    "gtr-xxl": "a1661fc8decc3ca8",
    "laprador": "6e19d95c813b15d5",
    "minilm": "77796e79b76305ac",
    "retromae": "4b6aaaf94b810f99",
    "retromae-msmarco": "4b6aaaf94b810f99",
    "retromae-msmarco-distill": "7dd3ccf991a7ec5e",
    "retromae-msmarco-ft": "7dd3ccf991a7ec5e",
    "retromae-pretrained": "4b6aaaf94b810f99",
    "roberta": "4b6aaaf94b810f99",
    "simcse": "ebe10a2dfa532868",
    "simcse-sup": "411c51dc429813ec",
    "tas-b": "4b6aaaf94b810f99",
}
SETTINGS = {
    "retromae dtype=bfloat16": "8312ae0be32f5e4a",
    "retromae store_dtype=float16": "4e44797e9e5d9494",
    "retromae query_prompt=q:": "3c7bb5b3bfb6b709",
    "bge-base query_prompt=q:": "02ff1a8f46ef87e1",
    "gtr-base max_query_tokens=32 max_document_tokens=100": "8ed0ac499a349837",
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that resolving reads, and stages as ANCE and GTR have them."""
    folder = tmp_path_factory.mktemp("stand-in")
    config = {"model_type": "bert", "hidden_size": WIDTH, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    stage = {"out_features": WIDTH, "dimension": WIDTH}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    for place in ("", "2_Dense", "3_LayerNorm"):
        (folder / place).mkdir(exist_ok=True)
        if place:
            (folder / place / "config.json").write_text(json.dumps(stage | identity))
        save_file({"w": np.zeros(1, np.float32)}, folder / place / "model.safetensors")
    return folder


def fingerprint(recipe: Recipe) -> str:
    """First digits of the fingerprint, with files that do not depend on this machine."""
    return msgspec.structs.replace(recipe, files=FILES).fingerprint[:16]


@pytest.mark.parametrize("card", PINNED)
def test_the_fingerprint_of_a_shipped_card_stays(stand_in: Path, card: str) -> None:
    assert fingerprint(resolve_model(str(stand_in), like=card).recipe) == PINNED[card]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_fingerprint_of_a_setting_stays(stand_in: Path, settings: str) -> None:
    card, *pairs = settings.split()
    given = dict(pair.split("=") for pair in pairs)
    numbers = {key: int(value) for key, value in given.items() if value.isdigit()}
    model = resolve_model(str(stand_in), like=card, **(given | numbers))  # type: ignore[arg-type]
    assert fingerprint(model.recipe) == SETTINGS[settings]


@pytest.mark.parametrize(
    ("changes", "pinned"),
    [
        ({"backend": "int8"}, "dcea47f25c00aa86"),
        ({"adapter": AdapterIdentity("peft", {"a": "dd"})}, "48cf643cfc028275"),
        ({"adapter": AdapterIdentity("adapterhub", {"a": "dd"}, dropped=2)}, "7579d692b6ab5955"),
        ({"adapter": AdapterIdentity("routed", {"a": "dd"})}, "cd458cdccd532a64"),
    ],
)
def test_the_fingerprint_with_a_back_end_or_an_adapter_stays(
    stand_in: Path, changes: dict[str, Any], pinned: str
) -> None:
    recipe = resolve_model(str(stand_in), like="retromae").recipe
    assert fingerprint(msgspec.structs.replace(recipe, **changes)) == pinned
