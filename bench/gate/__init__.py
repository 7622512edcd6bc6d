"""The release gate: decides whether a checkpoint may replace the baseline.

A check has two halves. The first finds the stored results of the baseline and evaluates the
candidate (`candidate`), or takes evaluations that Python already has. The second is a pure function
of two score vectors per collection, weights and limits (`decision`), with a confidence bound of the
mean loss (`bound`). `check` is the use case for both; `published` compares with published means,
and `served` a server with its checkpoint.

Types, in `check_record`: `CheckRow` (a collection or the mean), `PairVerdict` (the candidate
compared with one other model), `Check` (the complete decision).

Read `decision.py` first.
"""
