#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh VENV: format, lint, types, import contracts, generated files; all are run, then the
# verdict.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

bin=$(cd "$1/bin" && pwd)
cd "$ROOT" || exit 1
failed=()
check() { # NAME COMMAND...
	local name=$1
	shift
	if "$@"; then say "$name: ok"; else failed+=("$name"); fi
}

clang_format() {
	local tool
	tool=$(command -v clang-format || command -v clang-format-14) || {
		say "clang-format: not installed, the C files are not checked"
		return 0
	}
	git ls-files --cached --others --exclude-standard '*.c' '*.h' | grep -v '\.gen\.h$' |
		xargs -r "$tool" --dry-run --Werror
}

check "ruff check" "$bin/ruff" check --quiet .
check "ruff format" "$bin/ruff" format --quiet --check .
check "mypy" "$bin/mypy" --no-error-summary
check "import-linter" env PYTHONPATH="$ROOT" "$bin/lint-imports" --no-logo
check "generated files" "$bin/python" -m gpucorrelate.probes.wire.cgen --check
check "generated BPF headers" "$bin/python" -m gpucorrelate.probes.ebpf.build --check
check "clang-format" clang_format

[ ${#failed[@]} -eq 0 ] || die "lint failed: ${failed[*]}"
