#!/bin/bash
# Headless Chromium loads a site of 100 assets through rdmaproxy; what it shows is kept in build/browser-*.png. Installs Chromium on
# Debian, as root. ADDR is the address of the RDMA connections, see addr.sh; CHROMIUM is another browser of that kind.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/debian.sh
. tools/addr.sh

say() { echo "browser: $*" >&2; }

[[ -n ${CHROMIUM:-} ]] || install_missing chromium
ADDR=$addr go test -tags browser -count=1 -v ./compat/browser
