"""The search for the difference in settings that explains other vectors, runs or scores.

`setup` holds everything that a hypothesis may change, the table of single deviations, and the
records of an answer. `passes` encodes texts under any configuration, each token sequence once.
`evidence` measures how well vectors and runs fit a configuration, and `scored` does so for scores
by query and published scores. `question` reads the evidence, and `explain` searches for the answer.
"""
