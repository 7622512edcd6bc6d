"""Readers of documents, queries and judgements, one module per layout of files.

To add a layout, add a module with a subclass of `Reader` and an entry in `datasets_cfg.download`.
"""
