"""The bytes of some vectors, encoded in a process of their own.

``python -m tests.benchmarks.gpu_proof.same_bytes JOB``: JOB is a JSON list of a card, a dtype, a
device and texts; prints the sha256 of their vectors.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from retrievers.encoders.protocol import Encoder


def digest(encoder: Encoder, texts: Sequence[str]) -> str:
    """Sha256 (hex) of the vectors of some documents."""
    vectors = encoder.encode_documents([""] * len(texts), texts)
    return hashlib.sha256(vectors.tobytes()).hexdigest()


def main() -> None:
    """Encode and print."""
    from retrievers.encoders.routed import open_encoder
    from retrievers.models.model import resolve_model
    from tests.support.variable_length_on_cpu import packing

    card, dtype, device, texts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with packing(device):
        print(digest(open_encoder(resolve_model(card, dtype=dtype), device), texts))


if __name__ == "__main__":
    main()
