"""The certificates that a WebSocket trusts."""

import pytest

from lakesync.client import UnreachableError, WebSocketTransport


def test_a_websocket_names_a_file_of_certificates_that_cannot_be_read(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "absent.pem"):
        transport = WebSocketTransport("https://127.0.0.1:1", "g", "token", ca=str(tmp_path / name))
        with pytest.raises(UnreachableError, match=rf"trusted certificates in .*{name} cannot be read"):
            transport.connect()
