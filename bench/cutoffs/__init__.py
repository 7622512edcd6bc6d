"""The score below which to return nothing, with a proof of what remains.

`cutoff_record` has the records, and `cutoff` the proof, on arrays of scores, and the use case.
"""
