"""What may go wrong around a user, done on purpose: ``make faults`` prints what became of each.

``edits`` is a table of kernels that are wrong or do harm, with the words that the user has to
see (done by ``run_edits`` in processes that stand for notebooks); ``house`` one of what may happen
to the cache, the compiler, the folders, the cells and the processes around it (done by
``run_house`` in processes that stand for users' scripts).  ``flips`` damages a cache a bit at a
time.  ``soak`` is ``make soak``: it fuses, edits, tunes and runs again for some minutes, and looks
at what the process holds.
"""
