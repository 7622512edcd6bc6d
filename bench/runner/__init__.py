"""Use cases that evaluate: `run`, `score`, `index` and `work`, and the workspace they share.

`workspace` opens collections and models, and prepares evaluations. `run` evaluates models on
collections; `worker_processes` and `ray_cluster` encode for it. `score` evaluates a ranking,
`index` writes one index to a folder, `work` encodes as one of several workers.
"""
