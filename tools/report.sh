# Functions for scripts that check several things: one line each, and a status at the end. To be sourced.
# shellcheck shell=bash

failed=0

# check NAME COMMAND... runs a command. Its output is shown if it fails.
check() {
	local name=$1 start=$SECONDS out
	shift
	if out=$("$@" 2>&1); then
		printf 'ok    %s (%d s)\n' "$name" $((SECONDS - start))
	else
		printf 'FAIL  %s\n%s\n' "$name" "$out"
		failed=$((failed + 1))
	fi
}

# left_out NAME WHY says that a check did not run. In CI (CI is set) that is a failure.
left_out() {
	if [[ -n ${CI:-} ]]; then
		printf 'FAIL  %s: did not run: %s\n' "$1" "$2"
		failed=$((failed + 1))
	else
		printf -- '--    %s: left out: %s\n' "$1" "$2"
	fi
}

# not_asked NAME WHY says that a check did not run because the caller wanted it so.
not_asked() { printf -- '--    %s: left out: %s\n' "$1" "$2"; }

# with_cgo NAME succeeds if Go uses cgo, and says otherwise that NAME is left out.
with_cgo() {
	if [[ $(go env CGO_ENABLED) == 1 ]]; then
		return 0
	elif [[ ${CGO_ENABLED:-} == 0 ]]; then
		not_asked "$1" "CGO_ENABLED=0"
	else
		left_out "$1" "no C compiler"
	fi
	return 1
}

# finish ends the script.
finish() {
	((failed == 0)) || echo "$failed failed" >&2
	exit $((failed > 0))
}
