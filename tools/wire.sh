#!/bin/bash
# Has Wireshark judge what the software device sends.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/report.sh

name="Wireshark decodes the software device"
if [[ ${CGO_ENABLED:-} == 0 ]]; then
	not_asked "$name" "CGO_ENABLED=0"
elif ((EUID != 0)); then
	left_out "$name" "capturing needs root"
elif ! command -v tshark >/dev/null; then
	left_out "$name" "no tshark"
else
	check "$name" tools/tshark.sh
fi
finish
