"""Fine-tuning an encoder on judged queries.

`training_data` has `TrainingSet` (queries with their relevant documents), the selection of hard
negatives among the results of a `NegativeSearch`, and the batches. `student` is the model that is
trained, `losses` has the losses and trainers of sentence-transformers, and `teacher` a
cross-encoder that scores negatives. `finetune` trains each `Round` and returns a `FinetuneResult`.
"""
