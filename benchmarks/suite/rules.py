"""The cost of one sync rule (a column equals a claim): of pushes, and of pulls of one team's rows of a large table.

Each client pushes rows of its own team, which the rule shows only to this client. `push_ratio` is the push rate with
the rule divided by the rate without rules. `slice_ratio` is the time to pull one team's rows divided by the time to
pull as many rows from a gateway that stores only these and has no rules, both when the gateway is idle.
`first_pull_ms` is the slowest response to a client that pulled right after the last push.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import load, server
from benchmarks.suite import Benchmark
from benchmarks.suite.pull import fill


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--clients", type=int, default=16, help="clients that push")
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas pushed with and without rules")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the large table")
    parser.add_argument("--teams", type=int, default=100, help="slices of the large table")
    parser.add_argument("--page", type=int, default=1000, help="deltas in a page")
    parser.add_argument("--rounds", type=int, default=5, help="clients that pull a slice, one after another")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "free") as gateway:
            free = _pushed(gateway, options)
        with server.gateway(folder / "ruled") as gateway:
            load.admin(gateway.port, "sync-rules", load.RULES)
            with gateway.measure() as used:
                ruled = _pushed(gateway, options)
        with server.gateway(folder / "large") as gateway:
            load.admin(gateway.port, "sync-rules", load.RULES)
            fill(gateway.port, options.rows, teams=options.teams)
            first = _pulled(gateway, options, {"team": "team-7"}, "first", 1)
            gateway.wait_idle()
            part = _pulled(gateway, options, {"team": "team-7"})
        with server.gateway(folder / "small") as gateway:
            fill(gateway.port, options.rows // options.teams)
            _pulled(gateway, options, {}, "first", 1)
            gateway.wait_idle()
            whole = _pulled(gateway, options, {})
    return {
        **ruled,
        **load.usage_figures(used[0], ruled["deltas"]),
        "free_rate": free["rate"],
        "push_ratio": round(ruled["rate"] / free["rate"], 3),
        "first_pull_ms": first["p99_ms"],
        "slice_deltas": part["deltas"],
        "slice_rate": part["rate"],
        "whole_deltas": whole["deltas"],
        "whole_rate": whole["rate"],
        "slice_ratio": round(whole["rate"] / part["rate"], 3),
    }


def _pushed(gateway: server.Server, options: Namespace) -> dict[str, Any]:
    """Let the clients push, each rows of its own team, and return the figures."""
    wanted = load.PushLoad(clients=options.clients, deltas=options.deltas, own_team=True)
    return load.figures(load.run_in_process(load.push, gateway.port, wanted))


def _pulled(
    gateway: server.Server, options: Namespace, claims: dict[str, Any], name: str = "reader", rounds: int | None = None
) -> dict[str, Any]:
    """Let one client after another pull all rows that it may see, and return the figures of all pulls.

    Args:
        gateway: the gateway.
        options: the benchmark's options.
        claims: further claims of the clients' tokens.
        name: prefix of the client ids.
        rounds: number of clients; None for the option's.
    """
    samples: list[load.Sample] = []
    for number in range(rounds or options.rounds):
        wanted = load.PullLoad(name=f"{name}-{number}", claims=claims, page=options.page)
        before = samples[-1].ended if samples else 0.0
        samples += [
            sample._replace(ended=before + sample.ended)
            for sample in load.run_in_process(load.pull, gateway.port, wanted)
        ]
    return load.figures(samples)


BENCHMARKS = (Benchmark("rules", __doc__, arguments, run),)
