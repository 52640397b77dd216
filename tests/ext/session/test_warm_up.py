"""Getting ready between cells: what runs when, and never beside a cell."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import threading
import time

import pytest
from IPython.core.events import EventManager, available_events

from fuselab.session.warm_up import BetweenCells
from support.processes import run_python
from support.waiting import wait_for


@pytest.fixture
def events():
    return EventManager(None, available_events)


def test_steps_run_in_order_after_the_cell_and_then_it_lets_go(events):
    done = []
    between = BetweenCells(events, [lambda: done.append(1), lambda: done.append(2)])
    between.begin()
    assert done == []
    events.trigger("post_execute")
    wait_for(lambda: done == [1, 2])
    events.trigger("pre_execute")
    events.trigger("post_execute")
    assert between.before_cell not in events.callbacks["pre_execute"]
    assert between.after_cell not in events.callbacks["post_execute"]


def test_a_cell_waits_for_one_step_only_and_the_rest_follows_after_it(events):
    entered, leave, done = threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        leave.wait(60)
        done.append("slow")

    between = BetweenCells(events, [slow, lambda: done.append("next")])
    between.begin()
    events.trigger("post_execute")
    assert entered.wait(60)
    threading.Timer(0.05, leave.set).start()
    events.trigger("pre_execute")  # waits
    assert done == ["slow"]
    time.sleep(0.05)
    assert done == ["slow"]
    events.trigger("post_execute")
    wait_for(lambda: done == ["slow", "next"])
    between.end()


def test_a_cell_that_has_to_wait_says_so(events):
    entered, leave, said = threading.Event(), threading.Event(), []

    @contextlib.contextmanager
    def waiting():
        said.append("waits")
        leave.set()  # the step ends once somebody has been told
        yield
        said.append("goes on")

    def slow():
        entered.set()
        leave.wait(60)

    ahead = BetweenCells(events, [slow], waiting)
    ahead.begin()
    events.trigger("post_execute")
    assert entered.wait(60)
    events.trigger("pre_execute")
    assert said == ["waits", "goes on"]
    events.trigger("post_execute")
    events.trigger("pre_execute")  # nothing is left to wait for
    assert said == ["waits", "goes on"]
    ahead.end()


def test_cells_within_a_cell_start_nothing(events):
    done = []
    between = BetweenCells(events, [lambda: done.append(1)])
    between.begin()
    events.trigger("pre_execute")
    events.trigger("pre_execute")
    events.trigger("post_execute")
    time.sleep(0.05)
    assert done == []
    events.trigger("post_execute")
    wait_for(lambda: done == [1])
    between.end()


def test_begun_within_a_cell_within_a_cell(events):
    done = []
    between = BetweenCells(events, [lambda: done.append(1)])

    def run_cell_async(inner):
        inner()

    run_cell_async(lambda: run_cell_async(between.begin))
    events.trigger("post_execute")
    time.sleep(0.05)
    assert done == []
    events.trigger("post_execute")
    wait_for(lambda: done == [1])
    between.end()


def test_a_step_that_fails_does_not_stop_the_others(events):
    done = []
    between = BetweenCells(events, [lambda: 1 / 0, lambda: done.append(1)])
    between.begin()
    events.trigger("post_execute")
    wait_for(lambda: done == [1])
    between.end()


def test_the_shell_is_left_as_it_was(events):
    before = {name: list(callbacks) for name, callbacks in events.callbacks.items()}
    between = BetweenCells(events, [lambda: None])
    between.begin()
    between.end()
    between.end()
    assert {name: list(callbacks) for name, callbacks in events.callbacks.items()} == before


WHERE_IMPORTED = """
import json, sys, threading
import torch
from fusec import warm

def work():
    for step in warm.steps():
        step()

if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()

def plain(value):
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else repr(value)

import torch._dynamo.config, torch._functorch.config, torch.fx.experimental._config
found = {}
for config in (torch._dynamo.config, torch._functorch.config, torch.fx.experimental._config):
    values = config.get_config_copy()
    found[config.__name__] = {k: plain(v) for k, v in values.items() if " at 0x" not in repr(v)}
found["compiled"] = float(torch.compile(lambda x: x.sin() + 1, backend="fusec")(torch.zeros(2))[0])
print(json.dumps(found, sort_keys=True))
"""


@pytest.mark.slow
def test_torch_imported_in_a_thread_is_as_if_the_main_thread_had():
    """Its settings are context variables: one set by an import in a thread would be lost."""
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", WHERE_IMPORTED, where],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout.splitlines()[-1]
        )
        for where in ("thread", "main")
    ]
    assert found[0] == found[1]
    assert len(found[0]["torch._dynamo.config"]) > 50
    assert found[0]["compiled"] == 1.0


def test_loading_the_extension_imports_no_compiler():
    code = (
        "import sys, torch\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "ip = InteractiveShell.instance()\n"
        "import fuselab\n"
        "fuselab.load_ipython_extension(ip)\n"
        "heavy = {'torch._dynamo', 'sympy', 'matplotlib', 'jinja2', 'triton', 'fusec.pipeline'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert run_python(code).splitlines()[-1] == "[]"


def test_others_get_their_turn_between_two_modules(events, tmp_path, monkeypatch):
    """Reading files frees Python's lock too briefly for others to take it."""
    for name in ("one", "two", "three", "four"):
        (tmp_path / f"nap_{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    naps, entered, leave = [], threading.Event(), threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _: naps.append(threading.current_thread().name))
    finders = list(sys.meta_path)

    def step():
        importlib.import_module("nap_one")
        importlib.import_module("nap_two")
        entered.set()
        leave.wait(60)
        importlib.import_module("nap_three")

    @contextlib.contextmanager
    def waiting():
        importlib.import_module("nap_four")  # not its own
        assert naps == ["fuselab-ahead"] * 2
        yield
        assert naps == ["fuselab-ahead"] * 2, "it is waited for"
        assert sys.meta_path == finders

    between = BetweenCells(events, [step], waiting)
    between.begin()
    events.trigger("post_execute")
    assert entered.wait(60)
    threading.Timer(0.2, leave.set).start()  # once the cell waits
    events.trigger("pre_execute")
    assert "nap_three" in sys.modules
    between.end()
