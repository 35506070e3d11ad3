#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tools that the benches run beside: a missing one is left out of the comparison, aloud.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

packages=()
command -v bpftrace >/dev/null || packages+=(bpftrace)
command -v offcputime-bpfcc >/dev/null || command -v offcputime >/dev/null || packages+=(libbpf-tools)
command -v strace >/dev/null || packages+=(strace)
command -v perf >/dev/null || packages+=(linux-perf)
[ ${#packages[@]} -gt 0 ] || exit 0
if ! as_root true || ! command -v apt-get >/dev/null; then
	say "not there, so not compared with: ${packages[*]}"
	exit 0
fi
quietly apt-update as_root apt-get update -q
for package in "${packages[@]}"; do
	# One by one: Ubuntu has no linux-perf.
	if as_root apt-get install -y -q --no-install-recommends "$package" >"$CACHE/apt-$package.log" 2>&1; then
		say "installed $package"
	else
		say "not to be had here, so not compared with: $package"
	fi
done
