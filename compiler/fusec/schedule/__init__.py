"""Which computations share a kernel, and how its loops run."""

from fusec.schedule.plan import Schedule, schedule_program

__all__ = ["Schedule", "schedule_program"]
