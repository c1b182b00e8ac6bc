"""Work the broker does by itself, later or again and again: recurring schedules, redriving dead letters."""
