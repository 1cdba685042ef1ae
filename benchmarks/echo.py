"""A minimal WebSocket server with which broadcasts of the gateway are compared: it forwards each message to all others.

It has the same HTTP stack (uvicorn, Starlette) and the same token check, but no storage and no lookup. `server.echo`
starts it.
"""

from __future__ import annotations

import os

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.dependencies import bearer_token
from gateway.server import listen
from lakesync.auth import TokenVerifier
from lakesync.wire.frames import FrameTag


def main() -> None:
    """Serve until stopped."""
    verifier = TokenVerifier((os.environ["BENCH_SECRET"],))
    connected: set[WebSocket] = set()

    async def live(websocket: WebSocket) -> None:
        verifier.verify(bearer_token(websocket.headers.getlist("authorization")) or "")
        await websocket.accept()
        connected.add(websocket)
        try:
            while True:
                message = await websocket.receive_bytes()
                broadcast = bytes((FrameTag.BROADCAST,)) + message[1:]
                for other in list(connected):
                    if other is not websocket:
                        await other.send_bytes(broadcast)
        except WebSocketDisconnect:
            connected.discard(websocket)

    with listen("127.0.0.1", 0) as bound:
        config = uvicorn.Config(
            Starlette(routes=[WebSocketRoute("/sync/{gateway}/ws", live)]),
            log_config=None,
            access_log=False,
            ws_per_message_deflate=False,
        )
        print(f'{{"event":"listening","url":"http://127.0.0.1:{bound.getsockname()[1]}"}}', flush=True)
        uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
