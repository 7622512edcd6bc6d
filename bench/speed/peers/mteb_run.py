"""mteb end to end: a retrieval task of its own over local files, and its evaluation.

mteb's tasks for public collections download them; this one reads the same documents from a
folder. ``python -m bench.speed.peers.mteb_run JOB``: the last line of stdout is one JSON document.
"""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from bench.speed.peers.job import Job, answer, job_of_this_process
from bench.speed.peers.sbert import open_model

SPLIT = "test"


def local_task(job: Job) -> Any:
    """A retrieval task of mteb over a folder in BEIR's layout."""
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
            """Read the files; mteb calls this once."""
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
    for line in path.read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            query, document, grade = line.split("\t")
            grades.setdefault(query, {})[document] = int(grade)
    return grades


def evaluate(job: Job) -> float:
    """nDCG@10, as mteb rounds it."""
    import mteb

    model = open_model(job)
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


def main() -> None:
    """Evaluate and answer."""
    score = evaluate(job_of_this_process())
    answer(score=score, version=importlib.metadata.version("mteb"))


if __name__ == "__main__":
    main()
