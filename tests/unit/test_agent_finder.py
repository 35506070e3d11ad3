# SPDX-License-Identifier: Apache-2.0
"""Modules are met at their first import, and nothing is imported for it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.agents.finder import PostImport

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "met_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("VALUE = 1\ndef function():\n    return VALUE\n")
    (folder / "two.py").write_text("from met_pkg import one\nVALUE = one.VALUE + 1\n")
    (folder / "bad.py").write_text("raise LookupError('its own')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "met_pkg"
    for name in [name for name in sys.modules if name.startswith("met_pkg")]:
        del sys.modules[name]


@pytest.fixture
def meet():
    finders = []

    def install(callbacks):
        finder = PostImport(callbacks)
        finder.install()
        finders.append(finder)

    yield install
    for finder in finders:
        sys.meta_path.remove(finder)


def test_called_once_after_the_module_ran(package, meet):
    seen = []
    meet({"met_pkg.one": lambda module: seen.append(module.VALUE)})
    assert seen == []
    assert importlib.import_module("met_pkg.two").VALUE == 2
    importlib.import_module("met_pkg.one")
    assert seen == [1]


def test_the_module_cannot_tell(package, meet):
    meet({"met_pkg.one": lambda module: None})
    one = importlib.import_module("met_pkg.one")
    assert inspect.getsource(one.function).startswith("def function")
    assert type(one.__loader__).__name__ == "SourceFileLoader"
    assert one.__spec__ is not None
    assert one.__spec__.loader is one.__loader__
    assert importlib.reload(one) is one


def test_what_is_imported_already_is_met_at_once(package, meet):
    importlib.import_module("met_pkg.one")
    seen: list[ModuleType] = []
    meet({"met_pkg.one": seen.append, "met_pkg.never": seen.append})
    assert [module.__name__ for module in seen] == ["met_pkg.one"]


def test_a_module_that_raises_raises_as_it_would(package, meet):
    seen: list[ModuleType] = []
    meet({"met_pkg.bad": seen.append, "met_pkg.absent": seen.append})
    with pytest.raises(LookupError, match="its own"):
        importlib.import_module("met_pkg.bad")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("met_pkg.absent")
    assert seen == []


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **env},
        check=False,
    )


REGISTER = """
import sys, threading
from gpucorrelate.probes.agents.vllm import register
before = set(sys.modules)
register(); register()
senders = [t for t in threading.enumerate() if t.name == "gpucorrelate-sender"]
finders = [f for f in sys.meta_path if type(f).__name__ == "PostImport"]
print(len(senders), len(finders), sorted(m for m in sys.modules if m.split(".")[0] == "vllm"))
"""


def test_register_twice_is_register_once_and_imports_no_engine(tmp_path):
    result = run(REGISTER, GPUCORRELATE_INGEST=str(tmp_path / "nobody"))
    assert result.stderr == ""
    # One for the engine's modules, one for profilers that need the GPU to themselves.
    assert result.stdout.split() == ["1", "2", "[]"]


def test_register_can_be_disabled(tmp_path):
    result = run(REGISTER, GPUCORRELATE_DISABLE="1")
    assert result.stdout.split() == ["0", "0", "[]"]


def test_register_never_raises(tmp_path):
    result = run(
        """
        import sys
        sys.modules["msgpack"] = None  # as if it were not installed
        from gpucorrelate.probes.agents.vllm import register
        register()
        print("still here")
        """
    )
    assert result.stdout.strip() == "still here"
    assert "the agent could not start" in result.stderr


def test_a_child_of_a_fork_is_dormant_and_has_a_sender_of_its_own(tmp_path):
    result = run(
        """
        import os, sys, threading
        from gpucorrelate.probes.agents.vllm import register
        from gpucorrelate.probes.agents.vllm.plugin import start
        register()
        start().started("s")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            names = [t.name for t in threading.enumerate()]
            print(start().on, names.count("gpucorrelate-sender"), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(start().on)
        """,
        GPUCORRELATE_INGEST=str(tmp_path / "nobody"),
    )
    assert result.stdout.split() == ["False", "1", "True"]
