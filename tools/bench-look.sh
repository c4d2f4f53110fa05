#!/bin/bash
# Opens the pages of make bench and make vm-bench in headless Chromium: build/bench/*.light.png, *.dark.png and *.pdf show what people
# see, in light and dark and on paper. CHROMIUM is another browser of that kind.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/debian.sh

say() { echo "bench-look: $*" >&2; }

[[ -n ${CHROMIUM:-} ]] || install_missing chromium
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
args=(--headless --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run --disable-background-networking
	--disable-component-update --disable-sync --disable-extensions --no-proxy-server "--user-data-dir=$profile")
((EUID)) || args+=(--no-sandbox) # which does not work for root

# browse ARGUMENT... PAGE opens a page; what Chromium says is shown if it fails.
browse() {
	local out
	out=$("${CHROMIUM:-chromium}" "${args[@]}" "$@" 2>&1) || { echo "$out" >&2 && return 1; }
}

shopt -s nullglob
for page in build/bench/*.html; do
	name=$PWD/${page%.html}
	browse --window-size="${SIZE:-1300,5200}" --blink-settings=preferredColorScheme=1 --screenshot="$name.light.png" "file://$PWD/$page"
	browse --window-size="${SIZE:-1300,5200}" --blink-settings=preferredColorScheme=0 --screenshot="$name.dark.png" "file://$PWD/$page"
	browse --no-pdf-header-footer --print-to-pdf="$name.pdf" "file://$PWD/$page"
	echo "$page: see $name.light.png, $name.dark.png, $name.pdf"
done
