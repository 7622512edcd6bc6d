"""The cheapest pipeline that is proved better than a baseline.

Read `gains` (the proof, on arrays of scores), then `rankings` (what takes part, and what it costs),
then `tuning_record` (the records), then `tune`, the use case.
"""
