"""How fast onejob is, as ratios: `make bench`, or `python -m bench --help`.

Every bar is a ratio to something measured in the same run, for a figure by itself says more about the machine
than about the code. In each round onejob and the reference take turns, the order changes from round to round,
and the result is the median of the rounds' ratios. None of this is a test: a miss is printed, nothing fails.

*Bare* is the store's own driver without onejob: sqlite3, psycopg or redis-py. It writes the same rows or
records with the same durability, one commit per call (or all in one statement for bulk), by prepared
statements or a loaded script, and runs no other Python. After every measurement the rows are counted by
another connection. See docs/performance.md for how to read the table.

`python -m bench.compare` measures two source trees of onejob in turn instead.
"""
