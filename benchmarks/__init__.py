"""Benchmarks of the running system: `scripts/bench NAME`. `docs/benchmarks.md` has the figures.

The modules of `benchmarks.suite` are the benchmarks. The other modules are their tools: `server` starts the measured
server in a process, `load` and `broadcasts` are the clients, in another process, `usage` measures processes, `lake`
starts Spark, and `baselines` has minimal servers for comparison.
"""
