"""Benchmarks of the running system: `scripts/bench NAME`. `docs/benchmarks.md` has the figures.

The modules of `benchmarks.suite` are the benchmarks. The other modules are their tools: `server` starts the measured
server in a process, `load` and `broadcasts` are the clients, in another process, `usage` measures processes, `lake`
starts Spark, and `baselines` has minimal servers for comparison.

Terms in all modules: a *delta* is a change of some columns of one row. Clients *push* deltas to the *gateway* server
and *pull* those of others. A *flush* moves deltas from the server's log to the *lake*, which has the *history* of all
deltas and *state tables* with current rows. A *backend* is a database or object store to which deltas are copied. A
*rate* is in deltas per second, unless a benchmark says otherwise.
"""
