"""Evaluation: encode texts, search the vectors, score the rankings.

`bench.runner.workspace.Workspace.prepare` checks everything once and returns a `Job`, and
``evaluate(job)`` returns an `Evaluation`. Read in this order:

- `pipeline`: `OpenDataset`, `Job` and `evaluate`; `evaluate_run` scores an existing ranking.
- `retriever`: `Retriever`, what ranks, with its `EvaluationOptions`. `registry` lists its
  subclasses, such as `vector_retriever` and `system_retriever`. Their ``search(dataset, depth)``
  returns a `Run`.
- `asking`: threads that ask a search system, and the file of its responses. `responses` reads them.
- `encoding`: the preflight of an encoder, encoding with the vector store, and its speed.
- `vector_search`: the steps of a search of vectors, from queries to scored candidates, or by words.
- `index_search`: exact search within the available memory, and FAISS indexes. `exact` searches
  on the CPU, `device_search` on a GPU, and `certificate` has the arithmetic of both.
- `runs`: `Run`, the ranking of each query. `run_files` reads and writes its files.
- `judging`: the protocol of a collection applied to a run, and means over suites.
- `scoring`: measures and `Scores`.
- `result_record`: `Evaluation`, with its `Result` (means, `Protocol`, recipe, `Timings`,
  `Conditions`), the scores of each query and its ranking.
"""
