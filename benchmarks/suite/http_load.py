"""Benchmarks of the gateway over HTTP: pushes, pulls, and the cost of a sync rule for both."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import load, server
from benchmarks.suite import Benchmark
from benchmarks.usage import sum_of
from tests.postgres_server import postgres_server


def _push_arguments(parser: ArgumentParser) -> None:
    """Add the options of `push`."""
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=10_000, help="distinct rows")
    parser.add_argument("--batch", type=int, default=100, help="deltas in a push")
    parser.add_argument("--deltas", type=int, default=500_000, help="number of deltas of all clients together")
    parser.add_argument("--seconds", type=float, default=60, help="longest duration of the load")
    parser.add_argument("--columns", type=int, default=0, help="additional columns of an INSERT")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")
    parser.add_argument("--mix", action="store_true", help="measure changes of existing rows, in several shapes")
    parser.add_argument("--shapes", default=",".join(load.SHAPES), help="with --mix: the shapes to measure")
    parser.add_argument(
        "--rule", action="store_true", help="with --mix: with a sync rule; each client has its own rows"
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="with --mix: staging store")
    parser.add_argument(
        "--processes", type=int, default=1, help="with --store postgres: gateway processes over the one store"
    )


def push(options: Namespace) -> dict[str, Any]:
    """Deltas per second that clients push. Each push is durable before its response; rows are merged for other clients.

    `plain_rate` is the rate of a minimal server (`benchmarks.baselines`: one SQLite row per delta, one commit per
    push) for comparison, and `ratio` that of the two. With `--mix`, rows are inserted first and then changed in
    each of the five shapes of `load.SHAPES`, one after another; the figures without a shape's name are those of the
    last, `mixture`. With several processes of the gateway, processor time and memory are those of all together.
    """
    if options.mix:
        return mix(options)
    wanted = load.PushLoad(
        clients=options.clients,
        rows=options.rows,
        batch=options.batch,
        deltas=options.deltas,
        seconds=options.seconds,
        columns=options.columns,
    )
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway") as gateway:
            with gateway.measure() as used:
                samples = load.run_in_process(load.push, gateway.port, wanted)
            gateway.stop()
            stored = gateway.stored_bytes()
        found = load.figures(samples)
        found |= load.usage_figures(used[0], found["deltas"])
        found["stored_bytes_per_delta"] = round(stored / found["deltas"], 1)
        if not options.no_baseline:
            found |= plain_figures(folder, wanted, found["rate"])
    return found


def mix(options: Namespace) -> dict[str, Any]:
    """Measure each shape of `options.shapes` over the same rows, and return the figures."""
    found: dict[str, Any] = {}
    filled = load.PushLoad(
        clients=options.clients, rows=options.rows, batch=1000, deltas=options.rows, own_team=options.rule
    )
    with ExitStack() as opened:
        folder = opened.enter_context(server.temporary_folder(options.folder))
        settings = {}
        if options.store == "postgres":
            settings["LAKESYNC_STAGING_URL"] = opened.enter_context(postgres_server()).uri
        gateway, *others = [
            opened.enter_context(server.gateway(folder / f"gateway-{number}", **settings))
            for number in range(options.processes if options.store == "postgres" else 1)
        ]
        plain = None if options.no_baseline else opened.enter_context(server.plain(folder / "plain"))
        if options.rule:
            load.admin(gateway.port, "sync-rules", load.RULES)
        for measured in (gateway, plain):
            if measured is not None:
                load.run_in_process(load.push, measured.port, filled)
        for shape in options.shapes.split(","):
            wanted = msgspec.structs.replace(
                filled, batch=options.batch, deltas=options.deltas, seconds=options.seconds, shape=shape
            )
            with ExitStack() as measured_now:
                used = [measured_now.enter_context(each.measure()) for each in (gateway, *others)]
                samples = load.run_in_process(load.push, gateway.port, wanted, *[other.port for other in others])
            figures = load.figures(samples)
            figures |= load.usage_figures(sum_of([usage for (usage,) in used]), figures["deltas"])
            if plain is not None:
                figures |= _of_plain(plain, wanted, figures["rate"])
            found |= figures | {f"{shape}_{name}": figures[name] for name in ("rate", "p99_ms", "cpu_us_per_delta")}
    return found


def plain_figures(folder: Path, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """Return the figures of the minimal server under a tenth of the same load.

    Args:
        folder: folder for the server's data.
        wanted: the load of the gateway.
        rate: the gateway's rate, from which the ratio is computed.
    """
    with server.plain(folder / "plain") as plain:
        return _of_plain(plain, wanted, rate)


def _of_plain(plain: server.Server, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """Return the figures of the running minimal server; see `plain_figures`."""
    less = msgspec.structs.replace(wanted, deltas=max(wanted.deltas // 10, wanted.clients * wanted.batch))
    baseline = load.figures(load.run_in_process(load.push, plain.port, less))
    return {
        "plain_rate": baseline["rate"],
        "plain_p99_ms": baseline["p99_ms"],
        "ratio": round(rate / baseline["rate"], 2),
    }


def _pull_arguments(parser: ArgumentParser) -> None:
    """Add the options of `pull`."""
    parser.add_argument("--clients", type=int, default=4, help="clients that pull at the same time")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--page", type=int, default=1000, help="deltas in a page")
    parser.add_argument("--updates", type=int, default=0, help="deltas that update rows after their inserts")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def pull(options: Namespace) -> dict[str, Any]:
    """Deltas per second that new clients pull, page by page: from a store in memory, and from disk after a restart.

    `small_rate` is the rate with a tenth of the rows stored. It should equal `rate`, because the cost of a pull
    depends only on what it returns. `disk_rate` is the rate of one client after a restart with an empty page cache.
    `plain_rate` is that of a minimal server (`benchmarks.baselines`) for comparison.
    """
    few = options.rows // 10

    def pull_all(port: int, name: str, clients: int) -> list[load.Sample]:
        wanted = load.PullLoad(name=name, clients=clients, page=options.page)
        return load.run_in_process(load.pull, port, wanted)

    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway") as gateway:
            fill(gateway.port, few)
            pull_all(gateway.port, "first", 1)
            gateway.wait_idle()
            small = load.figures(pull_all(gateway.port, "small", options.clients))
            fill(gateway.port, options.rows, options.updates)
            pull_all(gateway.port, "warming", 1)
            gateway.wait_idle()
            with gateway.measure() as used:
                warm = load.figures(pull_all(gateway.port, "warm", options.clients))
            gateway.stop()
        evict_from_cache(folder / "gateway")
        with server.gateway(folder / "gateway") as gateway:
            disk = load.figures(pull_all(gateway.port, "disk", 1))
        found = warm | load.usage_figures(used[0], warm["deltas"])
        found |= {"disk_rate": disk["rate"], "disk_p99_ms": disk["p99_ms"], "small_rate": small["rate"]}
        if not options.no_baseline:
            with server.plain(folder / "plain") as plain:
                fill(plain.port, few)
                baseline = load.figures(pull_all(plain.port, "plain", options.clients))
            found |= {"plain_rate": baseline["rate"], "ratio": round(warm["rate"] / baseline["rate"], 2)}
    return found


def fill(port: int, rows: int, updates: int = 0, teams: int = 100) -> None:
    """Push one INSERT for each row, then UPDATEs of the rows.

    Args:
        port: the gateway's port.
        rows: number of rows. Rows of an earlier call with fewer rows are inserted again.
        updates: number of UPDATEs.
        teams: number of distinct values of the column `team`.
    """
    wanted = load.PushLoad(clients=2, rows=rows, batch=1000, deltas=rows + updates, teams=teams, name=f"filler-{rows}")
    load.run_in_process(load.push, port, wanted)


def evict_from_cache(folder: Path) -> None:
    """Remove a stopped server's files from the system's page cache, so that they are read from disk.

    Args:
        folder: the server's folder.
    """
    for file in (folder / "data").rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _rules_arguments(parser: ArgumentParser) -> None:
    """Add the options of `rules`."""
    parser.add_argument("--clients", type=int, default=16, help="clients that push")
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas pushed with and without rules")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the large table")
    parser.add_argument("--teams", type=int, default=100, help="slices of the large table")
    parser.add_argument("--page", type=int, default=1000, help="deltas in a page")
    parser.add_argument("--rounds", type=int, default=5, help="clients that pull a slice, one after another")


def rules(options: Namespace) -> dict[str, Any]:
    """The cost of one sync rule (a column equals a claim): of pushes, and of pulls of one team's rows of a large table.

    Each client pushes rows of its own team, which the rule shows only to this client. `push_ratio` is the push rate
    with the rule divided by the rate without rules. `slice_ratio` is the time to pull one team's rows divided by
    the time to pull as many rows from a gateway that stores only these and has no rules, both when the gateway is
    idle. `first_pull_ms` is the slowest response to a client that pulled right after the last push.
    """
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


BENCHMARKS = (
    Benchmark("push", push.__doc__, _push_arguments, push),
    Benchmark("pull", pull.__doc__, _pull_arguments, pull),
    Benchmark("rules", rules.__doc__, _rules_arguments, rules),
)
