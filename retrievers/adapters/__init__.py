"""Adapters: small sets of weights on a base model, from AdapterHub or PEFT.

`adapter` trains, saves and attaches one, and `compose` averages, stacks and routes several.
`retrievers.models.adapter_files` identifies an adapter by its files.
"""
