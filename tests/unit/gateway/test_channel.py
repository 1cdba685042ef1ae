"""Which connections a channel serves after a commit."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace

from gateway.live.channel import Channel
from lakesync.engine.subscribers import ScanResult, Subscriber, Subscription, SubscriptionState
from lakesync.staging.notices import Notice


class Connection:
    """A connection that can always receive broadcasts."""

    client_name, connection_id, is_announced, has_sibling = "ann", "1", False, False

    def __init__(self):
        self.subscriber = Subscriber("ann", {}, SubscriptionState(1, 100))

    def check_ready(self):
        return True


class Gateway:
    """Subscribes connections to the bucket `all`, after a call of `before_subscribing`; counts the scans."""

    gateway_id, is_shared = "shop", False

    def __init__(self):
        self.before_subscribing = lambda: None
        self.scans = 0

    def submit_subscribe(self, newcomers):
        self.before_subscribing()
        future = Future()
        future.set_result([replace(each.state, subscription=Subscription(frozenset({"all"}))) for each in newcomers])
        return future

    def submit_scan(self, groups):
        self.scans += 1
        future = Future()
        future.set_result([ScanResult(each.state) for each in groups])
        return future


async def settled():
    """Let the channel's task run until it has ended."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def test_a_connection_that_ends_while_its_subscription_is_computed_is_not_served_again():
    async def end_meanwhile():
        gateway, connection = Gateway(), Connection()
        channel = Channel(gateway, lambda _: None)
        gateway.before_subscribing = lambda: channel.unsubscribe(connection)
        channel.subscribe(connection)
        channel.on_commit(Notice("shop", frozenset({"all"})))
        await settled()
        scans = gateway.scans
        channel.on_commit(Notice("shop", frozenset({"all"})))
        await settled()
        return gateway.scans - scans

    assert asyncio.run(end_meanwhile()) == 0
