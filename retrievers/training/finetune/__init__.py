"""Fine-tuning an encoder on judged queries.

Read in this order:

* `finetune_preset`: `Finetuning`, a preset: rounds (`Mining`), loss, teacher, adapter, length;
* `training_data`: `TrainingSet`, queries with the rows of their relevant documents, and the hard
  negatives that a search (`NegativeSearch`, handed in) finds for them;
* `batches`: `BatchOrder`, the queries of each step, and `Batches`, which draws negatives from a
  `NegativePool`;
* `student`: `Student`, the model that is trained, and its inputs;
* `losses`: what is minimised, and the trainers of sentence-transformers;
* `teacher`: a cross-encoder that scores negatives;
* `finetune`: `finetune`, which trains each `Round` and returns a `FinetuneResult`.
"""
