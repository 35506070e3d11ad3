#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# venv.sh DIR: the development environment, gpucorrelate in it as an editable install.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

dir=$1
cd "$ROOT"
python=$(find_python 3.11 3.12 3.13 3.14) || die "no Python 3.11 or newer with venv found"
if ! "$dir/bin/python" -c 'import pip' 2>/dev/null; then
	say "development environment: $dir, from $python"
	rm -rf "$dir"
	"$python" -m venv "$dir"
fi
say "development environment: installing gpucorrelate[dev] (under a minute)"
quietly venv "$dir/bin/python" -m pip install --disable-pip-version-check -e '.[dev]'
touch "$dir/.ready"
say "development environment: ready"
