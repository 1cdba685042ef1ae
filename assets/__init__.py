"""The pipeline's assets: thin wrappers around `lakehouse`, and the checks that hold them."""
