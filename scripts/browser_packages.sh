#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of pages need, some 300 MB: without it they are skipped, aloud.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ -z "${GPUCORRELATE_CHROMIUM:-}" ] || exit 0
command -v chromium >/dev/null && exit 0
if ! as_root true || ! command -v apt-get >/dev/null; then
	say "not there, so no page is looked at: chromium"
	exit 0
fi
quietly apt-update as_root apt-get update -q
if as_root apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core >"$CACHE/apt-browser.log" 2>&1; then
	say "installed chromium"
else
	say "not to be had here, so no page is looked at: chromium"
fi
