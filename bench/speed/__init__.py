"""Speed of one model on this machine, alone and beside other tools.

Read `records` (what is measured), then `timing` (the one clock: tools take turns at the same work),
`measurement` (phases, encoding, latency, indexes), `race` (other tools from process start to
scores) and `peers`, which runs in their processes.
"""
