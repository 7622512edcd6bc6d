"""Encoders: texts to vectors, by every back end.

Read `protocol` (the interface `Encoder`), then `transformer`, which opens the encoder of a model
and plans batches. `tower` computes them: with `packed` without padding, on `device`, from the ids
of `tokens`. Other encoders are those of `endpoint` (a URL), `objects` (a user's Python), `hashing`
and `bm25`, which has no vectors. `search_system` wraps a system of the user. `preflight` checks an
encoder on a sample, and `views` transform vectors after the forward pass.
"""
