"""Applications that use LakeSync as its users would."""
