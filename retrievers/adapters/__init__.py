"""Adapters: small sets of weights on a base model, from AdapterHub or PEFT.

Read `settings` (what a preset states), `hub` and `peft` (training, saving and attaching with each
library), `folder` (the adapter of a base with its card), and `compose` (several adapters as one).
`retrievers.models.read_adapter` identifies an adapter by its files, and the routing of queries to
adapters is in `retrievers.encoders.routed`. New methods of a library need no edit here.
"""
