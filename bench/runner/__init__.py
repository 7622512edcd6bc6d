"""Use cases that evaluate or encode, and the workspace they share.

`workspace` opens collections and models, and prepares evaluations. `run` evaluates models, scores
rankings, writes an index, or encodes as one of several workers. `engines` encode for it in several
processes or on a cluster.
"""
