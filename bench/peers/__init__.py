"""Other job systems: each fills its queue, empties it at its best setting, and returns the rate.

All have everything enqueued before the clock starts, and stop it when their store holds no unfinished job.
"""
