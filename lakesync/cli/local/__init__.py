"""Commands that work on this machine: on a project's files, its settings, its stores and its lake."""
