"""What may go wrong around a user, done on purpose: ``make faults`` prints what became of each.

``edits`` is a table of kernels that are wrong or do harm, with the words that the user has to
see; ``house`` one of what may happen to the cache, the compiler, the folders and the processes
around it.  ``soak`` uses everything for half an hour.
"""
