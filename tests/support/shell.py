"""A real IPython shell over a pretended compiler."""

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import start_ipython

import fuselab
from fusec.cache import CacheStore
from fuselab.magics import base, fuse, kernels, reports
from fuselab.session.session import Session
from support.cell_fake import FakeCompiler


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A shell with the extension loaded, a private store, and what is displayed recorded."""
    ip = start_ipython() or InteractiveShell.instance()  # one for the whole process
    for name in [n for n in ip.user_ns if not n.startswith("_") and n not in ip.user_ns_hidden]:
        del ip.user_ns[name]
    torch._dynamo.reset()
    fuselab.unload_ipython_extension(ip)
    fuselab.load_ipython_extension(ip)
    ip.compiler = FakeCompiler()
    ip.session = Session(ip.user_ns, compiler=ip.compiler, store=CacheStore(tmp_path / "store"))
    ip.magics_manager.registry["FuseMagics"].session = ip.session
    monkeypatch.setattr(fuselab, "_session", ip.session)
    ip.shown = []
    for module in (base, fuse, kernels, reports):
        monkeypatch.setattr(module, "display", lambda item, **kw: ip.shown.append(item))
    ip.user_ns.update(torch=torch, x=torch.arange(4.0))
    yield ip
    fuselab.unload_ipython_extension(ip)


def run(shell, source):
    """Run a notebook cell as a frontend does; return its value or raise its error."""
    result = shell.run_cell(source, store_history=True)
    result.raise_error()
    return result.result
