# SPDX-License-Identifier: Apache-2.0
"""The recipes of ``deploy/container``: linted, and in step with what they build.

Building an image needs a registry for its base, so it is not done here;
docs/quickstart-containers.md says how.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/container"
RECIPES = ("Containerfile", "Containerfile.engine")
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.skipif(not HADOLINT.exists(), reason="the extra 'docs' is not installed")
@pytest.mark.parametrize("name", RECIPES)
def test_hadolint_has_nothing_to_say(name):
    done = subprocess.run(
        [str(HADOLINT), str(FOLDER / name)], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_build_needs_is_let_in(name):
    lines = (FOLDER / f"{name}.dockerignore").read_text("utf-8").splitlines()
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    install = (ROOT / "scripts/install.sh").read_text("utf-8")
    needed = re.search(r"copy_sources\(\).*?\n\t\t(pyproject.*?) \| tar", install, re.DOTALL)
    assert needed is not None
    assert let_in == set(needed[1].replace("\\", " ").split())
    for path in let_in:
        assert (ROOT / path).exists(), path


def test_extras_that_it_installs_are_there():
    recipe = (FOLDER / "Containerfile").read_text("utf-8")
    extras = re.search(r"'\.\[([a-z,]+)\]'", recipe)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


def test_packages_to_build_with_are_those_of_the_set_up():
    recipe = (FOLDER / "Containerfile").read_text("utf-8")
    engine = (FOLDER / "Containerfile.engine").read_text("utf-8")
    wanted = set(
        re.findall(r"^need (\S+)", (ROOT / "scripts/system_packages.sh").read_text(), re.M)
    ) - {"libbpf1", "python3-bpfcc"}
    for text in (recipe, engine):
        stage = text.partition("AS build")[2].partition("\nFROM")[0]
        assert wanted <= set(re.findall(r"[a-z][a-z0-9.+-]+", stage))
    assert "libbpf1" in recipe.rpartition("FROM ${BASE}")[2]
