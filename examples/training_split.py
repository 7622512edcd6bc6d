"""Split the judged queries of a collection into a training and a test half.

python examples/training_split.py PASSAGES QUERIES QRELS FOLDER

PASSAGES and QUERIES are in the formats of MS MARCO (`collection.tsv`, `queries.*.tsv`) or of DPR
(`psgs_w100.tsv`, `*.qa.csv`), QRELS in that of TREC or BEIR. FOLDER is then a collection of its
own with RR@10 as its main measure: `finetune` trains on its split `train`, `run` evaluates its
split `test`. Which half a query is in follows from a hash of its words, so that questions that
differ in case or punctuation alone are in one half.
"""

import hashlib
import json
import sys
from pathlib import Path

from bench.training.training_sets import normalise_query
from datasets_cfg.readers import dpr, msmarco
from datasets_cfg.readers.qrels import read_qrels
from datasets_cfg.readers.reader import keep_judged_queries, read_tsv_queries

DPR_PASSAGES, DPR_QUERIES = "psgs_w100.tsv", ".qa.csv"


def half(text: str) -> str:
    """The split that a query is in."""
    return ("train", "test")[hashlib.sha256(normalise_query(text).encode()).digest()[0] % 2]


passages, queries, qrels, folder = map(Path, sys.argv[1:])
read_passages = dpr.read_passages if passages.name == DPR_PASSAGES else msmarco.read_passages
all_queries = (
    dpr.read_questions(queries).queries
    if queries.name.endswith(DPR_QUERIES)
    else read_tsv_queries(queries)
)
judgements = keep_judged_queries(all_queries, read_qrels(qrels), qrels)
split_of = dict(zip(judgements.queries.ids, map(half, judgements.queries.texts), strict=True))

(folder / "qrels").mkdir(parents=True)
with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
    for document in read_passages(passages):
        line = {"_id": document.id, "title": document.title, "text": document.text}
        file.write(json.dumps(line) + "\n")
with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
    for id_, text in zip(judgements.queries.ids, judgements.queries.texts, strict=True):
        file.write(json.dumps({"_id": id_, "text": text}) + "\n")
for split in ("train", "test"):
    rows = [row for row in judgements.qrels if split_of[row[0]] == split]
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
name = f"{folder.parent.name}/{folder.name}"
(folder / "dataset.toml").write_text(
    f'name = "{name}"\nlayout = "beir"\nmain_measure = "RR@10"\n', encoding="utf-8"
)
