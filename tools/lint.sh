#!/bin/bash
# Checks that need no test run: format, vet, staticcheck, go.mod files, shell scripts.
# shellcheck disable=SC2317 # the functions are called by check
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh

# silent COMMAND... succeeds if the command does and prints nothing.
silent() {
	local out
	out=$("$@" 2>&1) || { echo "$out" && return 1; }
	if [[ -n $out ]]; then
		echo "$out"
		return 1
	fi
}

# in_module DIR COMMAND... runs a command in a nested module.
in_module() { (cd "$1" && "${@:2}"); }

check "gofmt" silent gofmt -l .
check "go mod tidy" go mod tidy -diff
check "staticcheck builds" go build -C tools -o ../build/staticcheck honnef.co/go/tools/cmd/staticcheck
if with_cgo "go vet and staticcheck with cgo"; then
	check "go vet" go vet ./...
	check "go vet, guest and browser tests" go vet -tags guest,browser ./...
	check "staticcheck" build/staticcheck -tags guest,browser ./...
fi
check "go vet, no cgo" env CGO_ENABLED=0 go vet ./...
check "go vet, no cgo, guest and browser tests" env CGO_ENABLED=0 go vet -tags guest,browser ./...
# What only files with cgo use is unused here.
check "staticcheck, no cgo" env CGO_ENABLED=0 build/staticcheck -checks inherit,-U1000 ./...
check "go vet, darwin" env CGO_ENABLED=0 GOOS=darwin go vet ./...
check "go vet, windows" env CGO_ENABLED=0 GOOS=windows go vet ./...

# compat/servers needs minutes to download and build: make compat checks it.
for mod in $(git ls-files -co --exclude-standard -- '*/go.mod' ':!compat/servers/*'); do
	dir=${mod%/go.mod}
	check "$dir: go mod tidy" in_module "$dir" go mod tidy -diff
	if [[ -n $(find "$dir" -name '*.go' -print -quit) ]]; then
		check "$dir: go vet" in_module "$dir" go vet ./...
	fi
done

mapfile -t scripts < <(git grep -lE --untracked '^#! ?/(usr/bin/env )?(bin/)?(ba|da)?sh' -- ':!*.md' ':!*.go')
if command -v shellcheck >/dev/null; then
	check "shellcheck, ${#scripts[@]} scripts" shellcheck -x -P SCRIPTDIR "${scripts[@]}"
elif [[ ${CGO_ENABLED:-} == 0 ]]; then
	not_asked "shellcheck" "not installed"
else
	left_out "shellcheck" "not installed"
fi

finish
