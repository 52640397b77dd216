"""``python -m fuselab doctor``: what was found on this machine, and how to mend what lacks."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuselab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="look at torch, compilers, Jupyter, the cache ...",
        description="Exit status: 0 if fused cells run, 1 if something that they need is missing.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)

    from fuselab.doctor import examine, report

    findings = examine()
    print(report(findings, as_json=chosen.json))
    return 0 if all(each.state != "lack" for each in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
