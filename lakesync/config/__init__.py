"""The configuration of a project: `lakesync.toml` and `LAKESYNC_*` variables. Nothing else reads settings."""

from lakesync.config.settings import Config, config_file, load, read_file, user_file

__all__ = ["Config", "config_file", "load", "read_file", "user_file"]
