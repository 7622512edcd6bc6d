"""Training on collections: their texts and judgements as training data.

`training_sets` has the texts of corpora, `TrainSplit` (the judged queries of a collection) and
`find_leaks` (training queries that are also test queries). `trainings` has `pretrain`, `finetune`,
`adapt` and `compose`, their counterparts for opened collections, and the search for hard negatives.
"""
