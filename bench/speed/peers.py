"""Other tools on a folder in BEIR's layout, from files to nDCG@10, each in its own process.

``python -m bench.speed.peers TOOL JOB`` prints the score as its last line. Only the standard
library is imported before the tool, since its start is timed.
"""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPLIT = "test"
CALIBRATION_TEXTS = 300  # as many as sentence-transformers' own export takes
# Precision hints by dtype; operators that NNCF does not quantise run in float32.
OPENVINO_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


@dataclass(frozen=True)
class PeerJob:
    """Work of another tool, passed as a JSON argument.

    ``pooling``, as sentence-transformers names it, and the settings after it are those of a
    transformer alone; a folder of sentence-transformers has its own, and then it is "". ``folder``
    is the collection, and ``exclude_self`` whether the document whose id equals the query's is no
    answer.
    """

    weights: str
    pooling: str
    normalize: bool
    lower_case: bool
    device: str
    dtype: str
    threads: int
    max_tokens: int
    batch_size: int
    similarity: str
    query_prompt: str
    document_prompt: str
    folder: str = ""
    exclude_self: bool = True


def sentence_transformer(job: PeerJob, backend: str = "torch", **load: Any) -> Any:
    """Load the SentenceTransformer of ``job``, with a ``backend`` and its arguments ``load``."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    torch.set_num_threads(job.threads)
    if backend == "torch":  # which has no int8
        load["torch_dtype"] = "float32" if job.dtype == "int8" else job.dtype
    modules = None
    if job.pooling:
        network = Transformer(
            job.weights, model_kwargs=dict(load), do_lower_case=job.lower_case, backend=backend
        )
        pooling = Pooling(network.get_embedding_dimension(), pooling_mode=job.pooling)
        modules = [network, pooling, *([Normalize()] if job.normalize else [])]
    model = SentenceTransformer(
        None if modules else job.weights,
        modules=modules,
        device=job.device,
        model_kwargs=dict(load),
        backend=backend,
        similarity_fn_name="cosine" if job.similarity == "cos" else "dot",
        local_files_only=True,
    )
    model.max_seq_length = job.max_tokens
    return model


def openvino_transformer(job: PeerJob, texts: Sequence[str]) -> Any:
    """Load the SentenceTransformer of ``job`` with OpenVINO on the CPU.

    It is converted here. OpenVINO would choose bfloat16 by itself, so the precision is set. For
    int8, NNCF quantises weights and activations, calibrated on the first of ``texts``.
    """
    hints = {
        "INFERENCE_PRECISION_HINT": OPENVINO_HINTS[job.dtype],
        "INFERENCE_NUM_THREADS": job.threads,
    }
    model = sentence_transformer(job, "openvino", export=True, device="CPU", ov_config=hints)
    if job.dtype == "int8":
        with redirect_stdout(sys.stderr):  # NNCF draws progress bars
            _quantise(model, texts[:CALIBRATION_TEXTS])
    return model


def _quantise(model: Any, texts: Sequence[str]) -> None:
    """Quantise the OpenVINO network of ``model`` to int8, calibrated on ``texts``."""
    import nncf

    network = model.transformers_model
    names = [port.get_any_name() for port in network.model.inputs]
    # One text at a time, without padding, whose activations would count, too.
    inputs = (model.preprocess([text]) for text in texts)
    batches = [{name: batch[name].numpy() for name in names} for batch in inputs]
    network.model = nncf.quantize(
        network.model,
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    network.request = None  # the float32 network, compiled
    network.compile()


def beir_score(job: PeerJob) -> float:
    """Return nDCG@10 of ``job`` by beir's loader, exact search and evaluation."""
    from beir.datasets.data_loader import GenericDataLoader
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.models import SentenceBERT
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    corpus, queries, qrels = GenericDataLoader(job.folder).load(split=SPLIT)
    model = SentenceBERT()
    model.q_model = model.doc_model = sentence_transformer(job)
    model.query_prefix, model.doc_prefix = job.query_prompt or None, job.document_prompt or None
    search = DenseRetrievalExactSearch(model, batch_size=job.batch_size)
    kind = "cos_sim" if job.similarity == "cos" else "dot"
    retriever = EvaluateRetrieval(search, score_function=kind)
    rankings = retriever.retrieve(corpus, queries)
    ndcg, *_ = retriever.evaluate(
        qrels, rankings, retriever.k_values, ignore_identical_ids=job.exclude_self
    )
    return float(ndcg["NDCG@10"])


def mteb_score(job: PeerJob) -> float:
    """Return nDCG@10 of ``job`` by mteb, with its rounding, on a task over the same files."""
    import mteb

    model = sentence_transformer(job)
    prompts = {"query": job.query_prompt, "document": job.document_prompt}
    if any(prompts.values()):
        model.prompts = prompts
    done = mteb.evaluate(
        model,
        local_task(job),
        cache=None,
        co2_tracker=False,
        encode_kwargs={"batch_size": job.batch_size},
        show_progress_bar=False,
    )
    (scores,) = done.task_results[0].scores[SPLIT]
    return float(scores["ndcg_at_10"])


def local_task(job: PeerJob) -> Any:
    """Return a task over the files of ``job``, since mteb's own tasks download collections."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalRetrieval(AbsTaskRetrieval):  # type: ignore[misc]
        """Documents, queries and judgements of one folder."""

        ignore_identical_ids = job.exclude_self
        metadata = TaskMetadata(
            name="LocalRetrieval",
            description="A local collection.",
            reference=None,
            dataset={"path": "local", "revision": "local"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=[SPLIT],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *_: object, **__: object) -> None:
            """Read the files. mteb calls this once."""
            folder = Path(job.folder)
            documents = {row["_id"]: row for row in _rows(folder / "corpus.jsonl")}
            questions = {row["_id"]: row["text"] for row in _rows(folder / "queries.jsonl")}
            self.corpus, self.queries = {SPLIT: documents}, {SPLIT: questions}
            self.relevant_docs = {SPLIT: _judgements(folder / "qrels" / f"{SPLIT}.tsv")}
            self.data_loaded = True

    return LocalRetrieval()


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _judgements(path: Path) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {}
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")[1:]):
        query, document, grade = line.split("\t")
        grades.setdefault(query, {})[document] = int(grade)
    return grades


SCORES: dict[str, Callable[[PeerJob], float]] = {"beir": beir_score, "mteb": mteb_score}


if __name__ == "__main__":
    print(SCORES[sys.argv[1]](PeerJob(**json.loads(sys.argv[2]))), flush=True)
