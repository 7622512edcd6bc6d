"""The release gate: decides whether a checkpoint may replace the baseline.

A check has two halves. The first finds the stored results of the baseline and evaluates the
candidate (`candidate`), or takes evaluations that Python already has. The second is a pure function
of two score vectors per collection, weights and limits (`decision`). `check` is the use case for
both, and `check_record` has its records. Read `decision.py` first. `server` and `stack` compare
vectors instead: of a server with its checkpoint, and of one model in two environments.
"""
