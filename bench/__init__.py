"""How fast onejob is, told as ratios: `make bench`, or `python -m bench --help`.

Every bar is a ratio to something measured in the same run, for a figure by itself says more about the machine
than about the code. In each round ours and the reference take turns, the order changes from round to round,
and the answer is the median of the rounds' ratios. None of this is a test: a miss is printed, nothing fails.

*Bare* is the sqlite3 module of the standard library: the same rows, the same INSERT, the same schema, the
same `synchronous`, one commit per row (or one `executemany` for bulk), SQLite's own checkpoints, and no
Python beside the call. See docs/performance.md for how to read the table.
"""
