#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of the installed service need: without it they are skipped, aloud.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

packages=()
has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }
[ -x /lib/systemd/systemd ] || packages+=(systemd)
has dbus-daemon || packages+=(dbus)
has mkfs.ext4 || packages+=(e2fsprogs)
has setpriv || packages+=(util-linux)
[ ${#packages[@]} -gt 0 ] || exit 0
if ! as_root true || ! command -v apt-get >/dev/null; then
	say "not there, so the installed service is not tested: ${packages[*]}"
	exit 0
fi
quietly apt-update as_root apt-get update -q
if as_root apt-get install -y -q --no-install-recommends "${packages[@]}" >"$CACHE/apt-service.log" 2>&1; then
	say "installed ${packages[*]}"
else
	say "not to be had here, so the installed service is not tested: ${packages[*]}"
fi
