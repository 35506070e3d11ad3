# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: progress lines, failure in one line, long commands kept quiet.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE="$ROOT/.cache"
mkdir -p "$CACHE"

say() {
	printf '[gpucorrelate %4ds] %s\n' "$SECONDS" "$*"
}

die() {
	printf 'gpucorrelate: %s\n' "$*" >&2
	exit 1
}

# quietly NAME COMMAND...: output goes to .cache/NAME.log; a line every 20 s says that it is
# alive; when it fails the end of the log is shown.
quietly() {
	local name=$1 log pid start=$SECONDS
	shift
	log="$CACHE/$name.log"
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	# The command must not outlive an interrupted script.
	trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.5
		if ((SECONDS - start >= 20 && (SECONDS - start) % 20 == 0)); then
			say "  ... $name: $(tail -n 1 "$log" | tr '\r' '\n' | tail -n 1 | cut -c 1-70)"
			sleep 1
		fi
	done
	trap - INT TERM
	if ! wait "$pid"; then
		tail -n 25 "$log" >&2
		die "$name failed; the whole output is in ${log#"$ROOT"/}"
	fi
}

# as_root COMMAND...: run it as root, or fail when that cannot be had without asking.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
		sudo "$@"
	else
		return 1
	fi
}

# usable PYTHON: whether it can make virtual environments.
usable() {
	command -v "$1" >/dev/null && "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# find_python VERSION...: the first interpreter that is one of these versions, e.g. 3.11 3.12.
find_python() {
	local version candidate
	for version in "$@"; do
		for candidate in ${PYTHON:-} "python$version" "/usr/bin/python$version" python3 /usr/bin/python3; do
			if usable "$candidate" &&
				[ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ]; then
				command -v "$candidate"
				return 0
			fi
		done
	done
	return 1
}
