"""What tests of this project and of apps built on it need: a clock by hand, and Hypothesis strategies."""
