"""The score below which to return nothing, with a proof of what remains.

Read `choice` (the proof, on arrays of scores), then `cutoff_record` (the records), then `cutoff`,
the use case.
"""
