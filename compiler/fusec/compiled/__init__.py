"""A compiled graph and its parts: what a user holds, calls, edits, checks and tunes.

``graph.py`` has all that can be asked of one; ``calls.py`` what a call runs, ``measuring.py`` how
long it takes, ``checking.py`` whether it is right. ``part.py`` is one compiled part: inference, or
forward or backward.
"""
