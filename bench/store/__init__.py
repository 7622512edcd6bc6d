"""Vector store: every text is encoded once and found by its content.

`store` has the store, and compares vectors of different library versions. `shards` has the files of
vectors, and the plans and leases by which processes encode missing ones. `indexes` has FAISS
indexes on disk, `usage` the size and damage of stored vectors.
"""
