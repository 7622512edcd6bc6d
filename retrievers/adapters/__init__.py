"""Adapters: small sets of weights on a base model, from AdapterHub or PEFT.

Read `libraries` (settings, and an adapter in a network by either library), `folder` (training an
adapter of a base, and saving it with a card) and `compose` (averaging, stacking and routing).
`retrievers.models.read_checkpoint` identifies an adapter by its files.
"""
