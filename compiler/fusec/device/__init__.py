"""A compiled part on a GPU: plans of steps, launches in a row, CUDA graphs.

A target says what a kernel file starts (``target_api/launches.py``), where its text shows that it
does nothing else; ``plan_steps.py`` turns a program at known sizes
into steps (``steps.py``: memory, starts, calls of operators; ``step_memory.py`` says where memory
lies), and ``call/native/plan_run.cpp`` runs them: torch's allocator, the driver's launches, ATen's
operators by their bindings. Starts in a row (``start_rows.py`` puts them next to each other and
says which waits for which) become one small graph that is told the parameters of each call, where
the driver does that in less time than starting them one by one; both are timed in the first calls
(``call/native/chains.cpp``). Starts of one kernel that do not wait for each other, an optimizer's
for each parameter, become one (``packing.py``).

``call/native/device.cpp`` finds the plan by sizes and alignment. A new plan, or graph, runs once
beside the host program and is dropped if their results differ (``plan_check.py``). Sizes get a plan
when they return, 64 of them a part; those whose plans only push each other out run without
(``plan_policy.py``).

With ``cuda_graphs``, ``captured_steps.py`` rearranges the steps for capture, ``capture_policy.py``
decides when to capture and which inputs to copy, ``cuda_capture.py`` captures with torch's own
graphs and pools. What forward saves for backward alone stays where its graph makes it
(``residents.py``), in a pool of that graph's own: nothing is allocated or copied for it, and
backward's graph finds it where it was. Each call hands out new tensors over it, when nobody holds
those of an earlier call or their storages (``call/native/residents.cpp`` counts); a call that finds
them held runs by a spare plan, which makes everything anew.

``driver.py`` says what all of it needs of torch and the driver. The tests put a stand-in for the
driver in place (``tests/support/fake_driver.cpp``) and compare the prototypes with CUDA's header;
``tests/compiler/gpu/test_graphs.py`` and ``tests/compiler/gpu/test_chains.py`` run it on a GPU.
``FUSEC_GPU_PLANS=0`` leaves GPU programs to Python; ``FUSEC_GPU_CHAINS=never`` starts each kernel
by itself, for profilers that show a graph as one thing (``always`` does not time).
"""
