"""The simulation: GoQueue on a disk, a clock and a schedule that one seed decides. `python -m sim --help`."""
