#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make sure the compilers, libbpf and Python's venv are there; install them when root can be had.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

packages=()
need() { # PACKAGE COMMAND...: PACKAGE is needed when COMMAND fails
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || packages+=("$package")
}

has_libbpf() { { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep 'libbpf\.so\.1' >/dev/null; }
has_python_h() { # the headers of the Python that the development environment will be made of
	local python
	python=$(find_python 3.11 3.12 3.13 3.14) &&
		"$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
}
has_bcc() { /usr/bin/python3 -I -B "$ROOT/probes/ebpf/bcc_child.py" --find | grep folder; }
has_strip() { command -v llvm-strip || [ -n "$(compgen -c llvm-strip-)" ]; }

need clang command -v clang
need llvm has_strip
need gcc command -v cc
need libc6-dev test -e /usr/include/stdio.h
need libbpf-dev test -e /usr/include/bpf/bpf_helpers.h
need libbpf1 has_libbpf
# Only tests need it, and hosts without libbpf; 4 MB, as its LLVM is clang's.
need python3-bpfcc has_bcc
need python3-venv find_python 3.11 3.12 3.13 3.14
need python3-dev has_python_h

if [ ${#packages[@]} -gt 0 ]; then
	install="apt-get install -y --no-install-recommends ${packages[*]}"
	command -v apt-get >/dev/null ||
		die "missing: ${packages[*]} (Debian's names); this system has no apt-get, install their like and try again"
	say "system packages missing: ${packages[*]}"
	as_root true || die "not root and sudo asks for a password. Run this, then try again:  sudo $install"
	quietly apt-update as_root apt-get update -q
	quietly apt-install as_root env DEBIAN_FRONTEND=noninteractive bash -c "$install"
fi
find_python 3.11 3.12 3.13 3.14 >/dev/null ||
	die "no Python 3.11 or newer with venv found; install one or name it with PYTHON=/path/to/python3"
say "system packages: all there"
