"""The release gate: may this checkpoint ship?

A check is seven steps: results are read once; the collections are listed (`scope`); what they can
show is stated (`power`); what is missing is evaluated (`scope.evaluate_candidate`); the candidate
is compared with the baseline and the anchor (`evidence`, with `skew` for rare large differences);
`verdicts.decide` applies the truth table to the differences and names the rows that decided; the
report is written (`reports.check`).

Types, in `records`: `GateSettings` (rule and limits, as the command line has them), `CheckRow` (a
collection or the mean), `PairVerdict` (the candidate beside one other model), `Check` (the whole
decision). `verdicts.Evidence` and `verdicts.Decision` are what the truth table maps.

Read `verdicts.py` first.
"""
