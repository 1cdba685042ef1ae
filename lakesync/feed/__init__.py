"""The feed: a gateway's rows in the order of their latest change, from which each client is sent the changes it lacks.

`engine` calls these modules. A row has one *feed entry* for each bucket key of the sync rules: when it joined the
bucket, left it, and last changed in it.

- Writes: `push_rows` groups a push by row, `apply` merges it and writes feed entries, `astray` marks rows that the
  client must be sent again, `row_buckets` computes bucket keys, and `reindex` does so after a change of the rules.
- Reads: `positions` computes what a client's cursor means, `pull` reads a page from there, `row_presence` decides
  whether the client has a row, `missing_deltas` what it lacks of the row, and `render` makes the deltas that it is
  sent.
- A client's stored record: `client_state` changes its scopes (claims and rules under which the client was sent pages),
  `client_cursors` its cursors, and `scopes` looks them up.

See `docs/feed.md`.
"""
