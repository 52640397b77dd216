"""``%fuse_cache``: what the compiler keeps on disk."""

from __future__ import annotations

import argparse
from datetime import datetime

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from fusec import cache
from fusec.cache_archive import export_cache, import_cache
from fusec.errors import FusecError
from fuselab.magics.arguments import parsed

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SHOWN = 20


def size(text: str) -> int:
    """Read a size: ``500MB``."""
    number = text.lower().rstrip("bkmg")
    unit = text.lower()[len(number) :]
    if unit not in _UNITS or not number.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 2GB")
    return int(float(number) * _UNITS[unit])


@magics_class
class CacheMagics(Magics):
    """``%fuse_cache``."""

    @line_magic
    @magic_arguments()
    @argument("--list", action="store_true", help="The entries that were used last.")
    @argument("--verify", action="store_true", help="Check every entry; damaged ones are moved.")
    @argument("--prune", type=size, metavar="SIZE", help="Remove what was not used for longest.")
    @argument("--clear", action="store_true", help="Remove everything.")
    @argument("--export", metavar="FILE", help="Write it all to one file.")
    @argument("--import", dest="imported", metavar="FILE", help="Take in such a file.")
    def fuse_cache(self, line: str) -> None:
        """Show, check, prune, clear, export or import what the compiler keeps on disk."""
        args = parsed(self.fuse_cache, "%fuse_cache", line)
        try:
            self._do(args)
        except (FusecError, OSError) as error:
            raise UsageError(f"%fuse_cache: {error}") from None

    def _do(self, args: argparse.Namespace) -> None:
        from fuselab.display.outcomes import Table

        if args.verify:
            problems = cache.verify()
            display(
                Table(("damaged, moved aside",), [(p,) for p in problems], "no entry is damaged")
            )
        if args.prune is not None:
            print(f"entries removed: {cache.prune(args.prune)}")
        if args.clear:
            print(f"entries removed: {cache.clear()}")
        if args.export:
            print(f"written: {export_cache(args.export)}")
        if args.imported:
            print(f"taken in: {import_cache(args.imported)}")
        if args.list:
            rows = [
                (each.kind, each.digest[:12], f"{each.size / 1024:.0f} KiB", _moment(each.used))
                for each in cache.entries()[:_SHOWN]
            ]
            display(Table(("kind", "name", "size", "last used"), rows, "the cache is empty"))
        asked = (args.verify, args.prune is not None, args.clear, args.export, args.imported)
        if not any((*asked, args.list)):
            found = cache.info()
            counts = [(kind, str(count)) for kind, count in sorted(found.entries.items())]
            held = f"{found.size / (1 << 20):.1f} MiB of {found.limit >> 20} MiB"
            print(f"{found.folder}: {held}")
            display(Table(("kind", "entries"), counts, "the cache is empty"))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


__all__ = ["CacheMagics", "size"]
