"""Where shards are encoded and tiles searched: in this process, in others here, or on a cluster.

`protocol.Engine` is the interface. `local.LocalEngine` does the work in its own process, and every
worker holds one. `pool.PooledEngine` shares the work out among workers: `processes.ProcessPool`
has them on this machine, `actors.ActorPool` on a Ray cluster. Vectors never travel: workers write
shards into the store that they share, under its leases.
"""
