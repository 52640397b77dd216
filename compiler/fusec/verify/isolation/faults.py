"""A handler that says where a kernel went wrong before the process ends.

Where the handler itself cannot run any more, the signal ends the process as it would have without
it, and the report is less precise.
"""

from __future__ import annotations

import json
import os

from fusec.systems import Fault, this_system


def install(descriptor: int) -> None:
    """Report a fatal signal as one JSON line on ``descriptor``, then end the process."""

    def handle(fault: Fault) -> None:
        report: dict[str, object] = {
            "signal": fault.signal,
            "code": fault.code,
            "address": fault.address,
        }
        if fault.write is not None:
            report["write"] = fault.write
        if fault.instruction:
            report["instruction"] = fault.instruction.hex()
        os.write(descriptor, (json.dumps({"fault": report}) + "\n").encode())
        os._exit(128 + fault.signal)

    this_system().report_faults(handle)
