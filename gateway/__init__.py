"""The HTTP server of LakeSync: it parses, calls one engine method and answers; policy lives in `lakesync`."""
