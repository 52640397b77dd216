"""Which computations share a kernel, and how its loops run."""

from fusec.schedule.plan import Schedule, products_of, schedule_program, small_products

__all__ = ["Schedule", "products_of", "schedule_program", "small_products"]
