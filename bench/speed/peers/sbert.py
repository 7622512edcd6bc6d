"""sentence-transformers' own ``encode``, over and over, for a race of encoders.

``python -m bench.speed.peers.sbert JOB``: answers one line when the weights are loaded; then, for
each line on stdin that names a JSON file of texts and a file for their vectors, encodes and answers
with the seconds on the wall and of the processor.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.speed.peers.job import Job, answer, job_of_this_process

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def open_model(job: Job) -> "SentenceTransformer":
    """The model on its device, with the threads, the length and the precision of the job."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(job.threads)
    model = SentenceTransformer(
        job.weights,
        device=job.device,
        model_kwargs={"torch_dtype": job.dtype},
        similarity_fn_name="cosine" if job.similarity == "cos" else "dot",
        local_files_only=True,
    )
    model.max_seq_length = job.max_tokens
    return model


def encode(model: Any, job: Job, texts: list[str], vectors: Path) -> dict[str, float]:
    """Seconds of one pass; the GPU is idle at both ends. Vectors are written unless written."""
    import numpy as np

    from bench.speed.machine import synchronise

    synchronise()
    start, processor = time.perf_counter(), time.process_time()
    encoded = model.encode(
        texts,
        batch_size=job.batch_size,
        show_progress_bar=False,
        prompt=job.document_prompt or None,
    )
    synchronise()
    spent = {
        "seconds": time.perf_counter() - start,
        "processor_s": time.process_time() - processor,
    }
    if not vectors.exists():
        np.save(vectors, np.asarray(encoded, dtype=np.float32))
    return spent


def main() -> None:
    """Load, then encode what stdin names until it ends."""
    job = job_of_this_process()
    model = open_model(job)
    answer(version=importlib.metadata.version("sentence-transformers"))
    for line in sys.stdin:
        asked = json.loads(line)
        texts = json.loads(Path(asked["texts"]).read_text(encoding="utf-8"))
        answer(**encode(model, job, texts, Path(asked["vectors"])))


if __name__ == "__main__":
    main()
