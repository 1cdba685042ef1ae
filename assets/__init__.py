"""The pipeline's assets: thin wrappers around `resources.lake`, and the checks that hold them."""
