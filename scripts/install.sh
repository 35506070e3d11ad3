#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh install|uninstall: the program and its service below DESTDIR.
#
#   PREFIX   /usr/local; also /usr, or a folder of its own such as /opt/gpucorrelate
#   DESTDIR  empty; a folder in which all is put together, to be packed or copied
#   PYTHON   the interpreter it will run with: 3.11 or newer, not below /home or /root
#   WHEEL    a wheel made by 'make build'; without it one is built, which needs compilers
#   PIP_ARGS more arguments for pip, such as --no-index --find-links=DIR
#
# docs/operating.md lists what is put where.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
WHEEL=${WHEEL:-}
case $PREFIX in
/*) PREFIX=${PREFIX%/} ;;
*) die "PREFIX must be an absolute path, not '$PREFIX'" ;;
esac
case $DESTDIR in
"" | /*) DESTDIR=${DESTDIR%/} ;;
*) die "DESTDIR must be an absolute path, not '$DESTDIR'" ;;
esac

# systemd looks into its folders below /usr and /usr/local; for others /etc is the place.
case $PREFIX in
/usr | /usr/local) conf=$PREFIX/lib unit=$PREFIX/lib/systemd/system ;;
*) conf=/etc unit=/etc/systemd/system ;;
esac
lib=$DESTDIR$PREFIX/lib/gpucorrelate
bin=$DESTDIR$PREFIX/bin/gpucorrelate
doc=$DESTDIR$PREFIX/share/doc/gpucorrelate
unit=$DESTDIR$unit/gpucorrelate.service
sysusers=$DESTDIR$conf/sysusers.d/gpucorrelate.conf
tmpfiles=$DESTDIR$conf/tmpfiles.d/gpucorrelate.conf
config=$DESTDIR/etc/gpucorrelate/config.toml
share=$DESTDIR$PREFIX/share
completions=(
	"$share/bash-completion/completions/gpucorrelate"
	"$share/zsh/site-functions/_gpucorrelate"
	"$share/fish/vendor_completions.d/gpucorrelate.fish"
)
mark=.gpucorrelate-installed # what may be deleted as a whole holds this

# Only on a running system, not when a package is put together.
live() { [ -z "$DESTDIR" ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null; }

interpreter() {
	local candidate
	for candidate in ${PYTHON:-} /usr/bin/python3.1[1-9] /usr/bin/python3 /usr/local/bin/python3; do
		usable "$candidate" &&
			"$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
		candidate=$("$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))')
		# The service cannot see these folders (ProtectHome=).
		case $candidate in /home/* | /root/*) continue ;; esac
		printf '%s\n' "$candidate"
		return 0
	done
	return 1
}

owned() { # FOLDER: whether it may be deleted: absent, or made by an installation
	[ ! -e "$1" ] || [ -e "$1/$mark" ] ||
		die "$1 is there and was not made by 'make install': move it away first"
}

copy_sources() { # FOLDER: what a build needs, so that it leaves nothing here
	mkdir "$1"
	tar -C "$ROOT" -c --exclude=__pycache__ --exclude='*.so' --exclude='*.bpf.o' \
		pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE LICENSES \
		gpucorrelate api cli correlator daemon probes verify | tar -C "$1" -x
}

# Everything is made in a folder beside, and moved into place at the end.
install_program() {
	local python=$1 work=$2 what new=$lib.new
	if [ -n "$WHEEL" ]; then
		what=$(realpath "$WHEEL")
	else
		copy_sources "$work/source"
		what=$work/source
	fi
	quietly install-venv "$python" -m venv "$work/venv"
	mkdir -p "$(dirname "$lib")" "$(dirname "$bin")"
	rm -rf "$new"
	# shellcheck disable=SC2086 # PIP_ARGS are several words
	quietly install-pip "$work/venv/bin/python" -m pip install --disable-pip-version-check \
		--no-compile --target "$new" ${PIP_ARGS:-} "$what[cli,gpu]"
	rm -rf "$new/bin"
	touch "$new/$mark"
	# Of the others some hold files for another Python, which are never imported.
	"$python" -m compileall -q -s "$new" -p "$PREFIX/lib/gpucorrelate" "$new/gpucorrelate"
	"$python" -m compileall -q -s "$new" -p "$PREFIX/lib/gpucorrelate" "$new" >/dev/null || true
	chmod -R u=rwX,go=rX "$new"
	rm -rf "$lib.old"
	[ ! -e "$lib" ] || mv "$lib" "$lib.old"
	mv "$new" "$lib"
	rm -rf "$lib.old"
	# -I: nothing from the caller's environment or working folder is imported.
	cat >"$work/launcher" <<-LAUNCHER
		#!$python -I
		# SPDX-License-Identifier: Apache-2.0
		import sys

		sys.path.insert(0, "$PREFIX/lib/gpucorrelate")
		from gpucorrelate.cli.main import main

		main()
	LAUNCHER
	install -m 755 "$work/launcher" "$bin"
}

# Made by the program that was just installed, so that they are its own.
install_pages() {
	local python=$1 work=$2 page
	local made=("$python" -I -c 'import runpy, sys
sys.path[:0] = sys.argv[1:3]
module = sys.argv[3]
sys.argv = sys.argv[3:]
runpy.run_module(module, run_name="__main__")' "$lib" "$ROOT")
	"${made[@]}" scripts.man_pages "$work/man"
	remove_man
	for page in "$work"/man/man*/*; do
		install -D -m 644 "$page" "$share/${page#"$work"/}"
	done
	"${made[@]}" scripts.completions "$work/complete"
	install -D -m 644 "$work/complete/bash" "${completions[0]}"
	install -D -m 644 "$work/complete/zsh" "${completions[1]}"
	install -D -m 644 "$work/complete/fish" "${completions[2]}"
}

remove_man() {
	rm -f "$share"/man/man1/gpucorrelate.1 "$share"/man/man1/gpucorrelate-*.1 \
		"$share/man/man5/gpucorrelate.toml.5" "$share/man/man8/gpucorrelate.service.8"
}

install_service() {
	local work=$1
	sed "s|^ExecStart=.*|ExecStart=$PREFIX/bin/gpucorrelate daemon|" \
		"$ROOT/systemd/gpucorrelate.service" >"$work/unit"
	install -D -m 644 "$work/unit" "$unit"
	install -D -m 644 "$ROOT/systemd/gpucorrelate.sysusers" "$sysusers"
	install -D -m 644 "$ROOT/systemd/gpucorrelate.tmpfiles" "$tmpfiles"
	mkdir -p "$doc/docs/commands"
	install -m 644 "$ROOT"/{README.md,SECURITY.md,CHANGELOG.md,LICENSE,systemd/config.toml} "$doc/"
	install -m 644 "$ROOT"/docs/*.md "$doc/docs/"
	install -m 644 "$ROOT"/docs/commands/*.md "$doc/docs/commands/"
	touch "$doc/$mark"
	if [ -e "$config" ]; then
		say "kept as it is: $config (the defaults are in ${doc#"$DESTDIR"}/config.toml)"
	else
		install -D -m 644 "$ROOT/systemd/config.toml" "$config"
	fi
}

do_install() {
	local python work
	owned "$lib"
	owned "$doc"
	[ -n "$WHEEL" ] || "$ROOT/scripts/system_packages.sh"
	python=$(interpreter) ||
		die "no Python 3.11 or newer with venv outside /home and /root; name one with PYTHON=/path/to/python3"
	umask 022
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # as it is now
	trap "rm -rf '$work'" EXIT
	say "installing below $DESTDIR$PREFIX, to run with $python"
	install_program "$python" "$work"
	install_pages "$python" "$work"
	install_service "$work"
	if live; then
		systemd-sysusers "$sysusers"
		systemd-tmpfiles --create "$tmpfiles"
		systemctl daemon-reload
		say "done. Start it:  systemctl enable gpucorrelate && systemctl restart gpucorrelate"
	else
		say "done. On the machine that runs it: systemd-sysusers; systemctl daemon-reload"
	fi
}

do_uninstall() {
	owned "$lib"
	owned "$doc"
	if live; then
		systemctl disable --now gpucorrelate 2>/dev/null || true
	fi
	if [ -e "$config" ] && cmp -s "$config" "$doc/config.toml"; then
		rm -f "$config"
		rmdir --ignore-fail-on-non-empty "$(dirname "$config")"
	elif [ -e "$config" ]; then
		say "left, because it was changed: $config"
	fi
	rm -rf "$lib" "$lib.new" "$lib.old" "$doc"
	remove_man
	rm -f "$bin" "$unit" "$sysusers" "$tmpfiles" "${completions[@]}"
	if live; then
		systemctl daemon-reload
	fi
	say "left: recordings in $DESTDIR/var/lib/gpucorrelate, and the group gpucorrelate"
}

case ${1:-} in
install) do_install ;;
uninstall) do_uninstall ;;
*) die "usage: install.sh install|uninstall" ;;
esac
