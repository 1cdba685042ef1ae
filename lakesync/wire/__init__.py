"""Encodings of deltas (changes of rows) and of the messages that contain them, one module for each form.

`json`, `protobuf`, `frames` and `actions` encode what clients and gateways exchange, `frame_storage` opens the files of
checkpoints, and `malformed` finds the invalid parts of a request. `encoded`, `pages` and `delta_fields` are faster:
they leave deltas encoded as long as possible, or decode many at once. `log` encodes a row of the staging store's log,
`history` the columns of the lake's table of all deltas. The other modules limit how long connections to servers wait,
or set credentials.
"""
