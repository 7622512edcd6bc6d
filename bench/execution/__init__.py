"""Engines that encode shards and search tiles: in this process, in others, or on a cluster.

`protocol.ExecutionEngine` is the interface. `local.LocalEngine` works in its own process, and
every worker holds one. `pool.PooledEngine` shares the work out among workers:
`processes.ProcessPool` has them on this machine, `actors.ActorPool` on a Ray cluster. Vectors of
documents never travel: workers write shards into the store that they share, under its leases.
"""
