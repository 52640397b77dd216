"""What there is to know of a fused cell as text and as HTML: pure functions, a file a subject.

The panel's tabs, the static reports and ``%fuse_report --show`` in a terminal say the same,
because they all read it here.
"""
