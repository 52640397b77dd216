"""The stand-in for CUDA that torch makes while it traces, kept alive where torch does not.

Where torch was built for CUDA and there is no GPU, the first trace of a process puts an object that
does nothing in place of CUDA's device guard (``ensureCUDADeviceGuardSet`` in c10).  The object
belongs to the thread that traced; once that thread has ended, the next trace reads freed memory and
the process dies, whatever the backend.  So the object is made here, by a thread that stays.
"""

from __future__ import annotations

import threading

import torch


def keep_device_guard() -> None:
    """Have torch's stand-in made by the main thread, or by one that never ends.

    It is called before anything is traced. Where there is a GPU, or torch was built without CUDA,
    there is no stand-in.
    """
    make = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if make is None or not torch.backends.cuda.is_built() or torch.cuda.device_count():
        return
    if threading.current_thread() is threading.main_thread():
        make()
        return
    made = threading.Event()

    def stay() -> None:
        make()
        made.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="fusec-device-guard", daemon=True).start()
    made.wait()


__all__ = ["keep_device_guard"]
