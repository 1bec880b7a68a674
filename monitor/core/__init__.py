"""The pure part: arrays and frozen dataclasses in, the same out. No I/O, no clock, no global randomness."""
