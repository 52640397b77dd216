"""``%fuse_package``: a cell as a package, with its kernels as they are in use."""

from __future__ import annotations

import pytest
import torch
from IPython.core.error import UsageError

import fusec
import fuselab
from fusec.cache import CacheStore
from fusec.packages.binaries import default_names
from fusec.packages.runtime import load as load_alone
from fuselab.magics import package as package_magics
from fuselab.magics.completion import completions
from fuselab.session.session import Session
from support.shell import run


@pytest.fixture
def real_shell(shell, tmp_path, monkeypatch):
    """A shell whose cells are really compiled."""
    session = Session(shell.user_ns, store=CacheStore(tmp_path / "edits"))
    shell.magics_manager.registry["FuseMagics"].session = session
    monkeypatch.setattr(fuselab, "_session", session)
    monkeypatch.setattr(package_magics, "display", lambda item, **kw: shell.shown.append(item))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return shell


PLAIN = f"--binaries {default_names()[-1]}"


@pytest.mark.linux("binaries of packages")
def test_a_cell_with_an_edit_is_shipped(real_shell):
    shell = real_shell
    shell.user_ns.update(torch=torch, x=torch.randn(16, 33), w=torch.randn(33), k=2.0)
    run(shell, "%%fuse -q --name soft\ny = torch.softmax(x * w, -1) * k\ny.sum(0)")
    session = shell.magics_manager.registry["FuseMagics"].session
    name, kernel = next(iter(session.cells["soft"].kernels.items()))
    kernel.use(f"// mine: {name}\n{kernel.source}")
    run(shell, f"%fuse_package shipped soft {PLAIN}")
    (row,) = shell.shown[-1].rows
    assert row[:2] == ("soft", "shipped.fuse")
    assert f"edited: {name}" in row[-1]
    loaded = fusec.load("shipped.fuse")
    assert any(text.startswith("// mine") for text in loaded.kernels.values())
    x, w = torch.randn(16, 33), torch.randn(33)
    expected = torch.softmax(x * w, -1) * 2.0
    found = loaded(x=x, w=w, k=2.0)
    assert set(found) == {"y", "value"}
    torch.testing.assert_close(found["y"], expected)
    alone = load_alone("shipped.fuse")(x=x.numpy(), w=w.numpy(), k=2.0)
    torch.testing.assert_close(torch.from_numpy(alone["value"]), expected.sum(0))

    with pytest.raises(UsageError, match="not as it was generated"):  # never dropped in silence
        run(shell, f"%fuse_package other soft {PLAIN} --dynamic x:0")
    kernel.revert()
    run(shell, f"%fuse_package other soft {PLAIN} --dynamic x:0")
    x = torch.randn(5, 33)
    found = fusec.load("other.fuse")(x=x, w=w, k=2.0)["y"]
    torch.testing.assert_close(found, torch.softmax(x * w, -1) * 2.0)


def test_mistakes_are_said_in_one_line(real_shell, tmp_path):
    shell = real_shell
    shell.user_ns.update(torch=torch, x=torch.randn(8))
    run(shell, "%%fuse -q --name defs\ndef double(x):\n    return x * 2\n")
    run(shell, "%%fuse -q --name one\ny = x.sin()")
    for line, words in (
        ("it nothing", "there is no cell named 'nothing'"),
        ("it defs", "defines functions"),
        ("it one --dynamic x", "'x' is not a dimension"),
        ("it one --dynamic z:0", "names 'z'"),
        ("it one --binaries vax", "vax"),
        ("it one --weight no", "--weight"),
    ):
        with pytest.raises(UsageError, match="%fuse_package: ") as error:
            run(shell, f"%fuse_package {line}")
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.linux("binaries of packages")
def test_names_in_other_letters_and_what_is_gone(real_shell, tmp_path, capsys):
    shell = real_shell
    shell.user_ns.update(torch=torch, x=torch.randn(4, 9), größe=2.0)
    run(shell, "%%fuse -q --name norm\ny = x - x.mean(1, keepdim=True)")
    run(shell, "%%fuse -q --name schärfe\nŷ = torch.softmax(x * größe, -1)")
    run(shell, "%%fuse -q --name druck\nw = x * 2\nprint('here')\nv = w + 1")
    capsys.readouterr()
    run(shell, f"%fuse_package meins norm schärfe {PLAIN}")
    assert [row[1:3] for row in shell.shown[-1].rows] == [
        ("meins-norm.fuse", "x 4 x 9"),
        ("meins-schärfe.fuse", "x 4 x 9"),
    ]
    x = torch.randn(4, 9)
    loaded = fusec.load("meins-schärfe.fuse")
    torch.testing.assert_close(loaded(x=x, größe=2.0)["ŷ"], torch.softmax(x * 2.0, -1))
    assert next(iter(loaded.kernels)).startswith("kernels/scharfe-")
    del shell.user_ns["größe"]
    for line, words in (
        ("es druck", "druck is more than one graph: print runs in Python"),
        ("es schärfe", "schärfe reads größe, which is not there any more (assign it again"),
        ("es norm schärfe", "es-norm.fuse was written before; assign it again"),
    ):
        with pytest.raises(UsageError) as error:
            run(shell, f"%fuse_package {line} {PLAIN}")
        assert words in str(error.value)
    assert not capsys.readouterr().out  # what prints has not run again


def test_its_names_are_completed(shell):
    assert "--dynamic" in completions(shell, "%fuse_package it ", "")
    assert completions(shell, "%fuse_package it --weights ", "") == ["inside", "reference"]


def test_a_package_without_a_name(shell):
    with pytest.raises(UsageError, match=r"%fuse_package takes a file's name \(%fuse_package\?"):
        run(shell, "%fuse_package")
