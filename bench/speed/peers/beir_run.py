"""beir end to end: its loader, its exact search, its evaluation.

``python -m bench.speed.peers.beir_run JOB``: the last line of stdout is one JSON document.
"""

import importlib.metadata

from bench.speed.peers.job import Job, answer, job_of_this_process


def evaluate(job: Job) -> float:
    """nDCG@10 of a folder in BEIR's layout."""
    import torch
    from beir.datasets.data_loader import GenericDataLoader
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.models import SentenceBERT
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    torch.set_num_threads(job.threads)
    corpus, queries, qrels = GenericDataLoader(job.folder).load(split="test")
    prompts = {"query": job.query_prompt, "passage": job.document_prompt}
    model = SentenceBERT(
        job.weights,
        max_length=job.max_tokens,
        prompts=prompts if any(prompts.values()) else None,
        device=job.device,
        model_kwargs={"torch_dtype": job.dtype},
    )
    search = DenseRetrievalExactSearch(model, batch_size=job.batch_size)
    kind = "cos_sim" if job.similarity == "cos" else "dot"
    retriever = EvaluateRetrieval(search, score_function=kind)
    rankings = retriever.retrieve(corpus, queries)
    ndcg, *_ = retriever.evaluate(
        qrels, rankings, retriever.k_values, ignore_identical_ids=job.exclude_self
    )
    return float(ndcg["NDCG@10"])


def main() -> None:
    """Evaluate and answer."""
    score = evaluate(job_of_this_process())
    answer(score=score, version=importlib.metadata.version("beir"))


if __name__ == "__main__":
    main()
