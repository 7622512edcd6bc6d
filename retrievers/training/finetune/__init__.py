"""Fine-tuning an encoder on judged queries.

Read in this order:

* `finetune_preset`: `Finetuning`, a preset with rounds (`Mining`), loss, teacher, adapter and
  length;
* `training_data`: `TrainingSet`, queries with their relevant documents, and the selection of hard
  negatives among the results of a `NegativeSearch`;
* `batches`: `BatchOrder`, the queries of each step, and `Batches`, which draws negatives from a
  `NegativePool`;
* `student`: `Student`, the model that is trained, and its inputs;
* `losses`: the losses, and the trainers of sentence-transformers;
* `teacher`: a cross-encoder that scores negatives;
* `finetune`: `finetune`, which trains each `Round` and returns a `FinetuneResult`.
"""
