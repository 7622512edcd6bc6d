"""Models: from the name that a user types to a recipe and its files, without loading weights.

Read in the order of the steps; each takes the record of the one before:

- `card`: what is stated about a model (`Card`), and what determines its vectors (`Recipe`, whose
  hash is the fingerprint).
- `names`: a name to its card.
- `locate`: a checkpoint to its folder.
- `folder`: `ModelFolder`, what the files of a folder state. `st_files` has the records of those
  that sentence-transformers writes.
- `checkpoint` and `adapter_files`: the files that determine vectors, their hashes and tensors.
- `resolve`: `resolve_model` returns the `Model`, a card with its recipe and its files.

`retrievers.encoders.transformer` opens the encoder of a `Model`. `loading` reads weights for it.
"""
