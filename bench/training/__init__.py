"""Training on collections: their texts and judgements as training data.

`training_sets` has the texts of corpora, `TrainSplit` (the judged queries of a collection) and
`find_leaks` (training queries that are also test queries). `on_collections` has `pretrain_on`,
`finetune_on`, `adapt_on` and `route_on`, and the search for hard negatives.
"""
