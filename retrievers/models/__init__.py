"""Models: from the name that a user types to a recipe and its files, without loading weights.

Read in the order of the steps; each takes the record of the one before:

- `card`: what is stated about a model (`Card`), and what determines its vectors (`Recipe`, whose
  hash is the fingerprint).
- `locate`: a name to its card, and a checkpoint to its folder.
- `read_settings` and `read_checkpoint`: what the files of a folder declare (as a `Card`) and
  contain (`Checkpoint`, `AdapterIdentity`).
- `resolve`: `resolve_model` returns the `Model`, a card with its recipe and its files.

`retrievers.encoders.transformer` opens the encoder of a `Model`. `loading` reads weights for it.
"""
