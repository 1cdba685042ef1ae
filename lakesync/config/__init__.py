"""The configuration of a project: `lakesync.toml` and `LAKESYNC_*` variables. Nothing else reads settings."""

from lakesync.config.files import config_file, read_file, user_file
from lakesync.config.loading import load
from lakesync.config.settings import Config

__all__ = ["Config", "config_file", "load", "read_file", "user_file"]
