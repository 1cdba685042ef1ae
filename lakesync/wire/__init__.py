"""Encodings of deltas (changes of rows) and of the messages that contain them, one module for each form.

`json`, `protobuf`, `frames` and `actions` are what clients and gateways exchange, `pages` and `encoded` faster forms of
it; `log` is a row of staging's log, `history` the columns of the lake, `frame_places` the files of checkpoints.
`http_auth` and `postgres` open connections to servers.
"""
