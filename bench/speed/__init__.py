"""Speed of one model on this machine, alone and compared with other tools.

Read `speed_report` (the results), then `race` (alternating runs of several tools), `speed`
(encoding, latency, indexes) and `peers`, which runs in the processes of other tools.
"""
