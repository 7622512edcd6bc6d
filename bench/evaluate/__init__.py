"""Evaluation: texts become vectors, vectors a ranking, a ranking scores.

`bench.workspace.Workspace.prepare` checks everything once and returns a `Job`; `evaluate(job)`
returns an `Evaluation`. Read in this order:

- `pipeline`: `OpenDataset`, `Job`, `evaluate`; `evaluate_run` scores a ranking of somebody else.
- `retrieval`: `Options`, `LoadedModel`, the preflight of an encoder, documents to vectors by way of
  the store, and the two retrievers, by vectors and by words; each answers `search(dataset, depth)`
  with `SearchResult`: hits in canonical order without self-matches.
- `index_search`: exact search within the memory that there is, and indexes of FAISS; `exact` has
  the arithmetic.
- `search`: the one order of a ranking as integer keys, self-matches, recall.
- `runs`: `Run`, the ranking of each query, and its two kinds of files.
- `judging`: what the rules of a collection make of a run, and means over suites; `scoring`:
  measures and `Scores`.
- `cost`: what an evaluation will encode, before it starts.
"""
