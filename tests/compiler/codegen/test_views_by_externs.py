"""Views that ATen makes begin where their memory's tensor does, which may be inside of it."""

from __future__ import annotations

import torch

import fusec


def test_parts_of_complex_numbers_that_begin_inside_their_memory() -> None:
    memory = torch.randn(50, dtype=torch.complex64)
    for x in (memory[1:13].view(3, 4), memory.as_strided((3, 4), (8, 2), 1)):
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x: (x.real @ x.real.T, x.imag @ x.imag.T), dynamic=False)
        for part, found in zip((x.real, x.imag), compiled(x), strict=True):
            torch.testing.assert_close(found, part @ part.T)
