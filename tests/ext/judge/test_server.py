"""The judge as a server of the Model Context Protocol."""

from __future__ import annotations

import json
import sys

import pytest

from fuselab.judge.server import Desk, main
from support import cheats

TASKS = {task.name: task for task in (cheats.COUNT, cheats.SOFTMAX, cheats.SCALED)}
RIGHT = "def count(shape):\n    a, b, c = shape\n    return 4 * a * b * c\n"


def test_what_is_offered() -> None:
    desk = Desk(TASKS)
    assert "softmax: softmax by hand" in desk.list_tasks()
    shown = json.loads(desk.show_task("softmax"))
    assert shown["may_not_use"] == ["softmax", "log_softmax"]
    assert shown["limits"]["kernels"] == 1
    assert "reference" not in shown
    assert 'extern "C"' in json.loads(desk.show_task("scaled"))["declaration"]
    assert json.loads(desk.judge_answer("count", RIGHT))["ok"]
    assert "there are no hints" in desk.next_hint("count")
    assert "no task 'cuont'; there are count" in json.loads(desk.judge_answer("cuont", ""))["error"]


def test_without_mcp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main([], TASKS) == 2
    assert "pip install 'fuselab[mcp]'" in capsys.readouterr().err


@pytest.mark.slow
def test_over_the_protocol() -> None:
    """A client of the protocol's own library asks a server in another process."""
    pytest.importorskip("mcp")
    import asyncio

    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def talk() -> list[str]:
        import os

        environment = {k: v for k, v in os.environ.items() if k.startswith(("PYTHON", "FUSEC"))}
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "fuselab.labs", "serve"], env=environment
        )
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = {tool.name for tool in (await session.list_tools()).tools}
            assert tools == {"list_tasks", "show_task", "judge_answer", "next_hint"}
            answer = {
                "name": "lab01.bytes",
                "answer": "def bytes_moved(n, k):\n    return 8 * n * k, 8 * n\n",
            }
            calls = [
                ("judge_answer", answer),
                ("judge_answer", {**answer, "answer": "def bytes_moved(n, k):\n    return n\n"}),
                ("show_task", {"name": "lab08.scale"}),
                ("next_hint", {"name": "lab01.bytes"}),
                ("show_task", {"name": "nothing"}),
                ("list_tasks", {}),
            ]
            found = [await session.call_tool(name, given) for name, given in calls]
            return [str(each.content[0].text) for each in found]  # type: ignore[union-attr]

    right, wrong, shown, hint, unknown, listed = asyncio.run(talk())
    assert json.loads(right)["ok"]
    verdict = json.loads(wrong)
    assert not verdict["ok"]
    assert "which is not right" in verdict["reason"]
    assert json.loads(shown)["language"] == "Python with Triton"
    assert len(hint) > 20
    assert "no task 'nothing'" in json.loads(unknown)["error"]
    assert "lab14.router: by hand" in listed
