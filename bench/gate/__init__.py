"""The release gate: decides whether a checkpoint may replace the baseline.

A check has seven steps: read the stored results once; list the collections (`scope`); state the
minimum detectable effect (`power`); evaluate the candidate (`scope.evaluate_candidate`); compare it
with the baseline and the anchor (`evidence`, with `skew` for rare large differences); apply the
truth table (`verdicts.decide`), which names the rows that decided; write the report
(`reports.check`).

Types, in `records`: `GateSettings` (rule and limits, as on the command line), `CheckRow` (a
collection or the mean), `PairVerdict` (the candidate compared with one other model), `Check` (the
complete decision). The truth table maps `verdicts.Evidence` to `verdicts.Decision`.

Read `verdicts.py` first.
"""
