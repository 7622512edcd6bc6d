"""Requests of the use cases, from Python and from the command line.

Each use case is one function next to its domain that takes one request and returns one record, such
as ``bench.runner.run.run(RunRequest) -> RunReport``. `bench.cli` parses words into requests, and
`bench.api` builds the same ones from Python arguments. The docstring of a request is the only place
that documents its fields: ``--help`` and the reference of the Python API are made from it.

A request converts what it is given (one name or several, a path or a URL) and checks the types. It
imports no heavy library. `fields` has the groups of fields that several requests share; then come
`evaluating`, `deciding`, `training` and `data`. `outcomes` has what both doors return besides
records: exit codes, and evaluations that failed.
"""
