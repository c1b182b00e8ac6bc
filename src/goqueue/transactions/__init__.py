"""Transactions: who may write in which, what was decided about it, and what of a partition belongs to one."""
