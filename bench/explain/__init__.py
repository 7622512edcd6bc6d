"""Which difference of set-up explains vectors, a run or scores that somebody else got.

`setup` holds everything that a hypothesis may change, and the table of single deviations.
`passes` encodes texts under any set-up, each token sequence once. `fits` measures how well
predictions agree with what was given. `evidence` and `scored` predict vectors and scores under a
set-up, and `given` reads the files. `search` tries single deviations, then pairs, and ranks them.
"""
