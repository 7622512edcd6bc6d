"""Training on collections: their texts and judgements as training data.

Read `training_sets` (texts of corpora; `Split`, the judged queries of a collection; `leaks`,
training queries that are test queries), then `on_collections`: `pretrain_on`, `finetune_on`,
`adapt_on` and `route_on`, and the suite's search for hard negatives.
"""
