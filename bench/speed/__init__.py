"""Speed of one model on this machine, alone and beside other tools.

Read `records` (what is measured), then `race` (tools take turns at the same work, by one clock),
`measurement` (encoding, latency, indexes) and `peers`, which runs in other tools' processes.
"""
