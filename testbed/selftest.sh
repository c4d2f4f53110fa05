#!/bin/bash
# Shows that the test bed tells failure from success and leaves nothing behind.
set -euo pipefail
vm=$(cd "$(dirname "$0")" && pwd)/vm
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
passed=0 failed=0

# check WHAT WANT COMMAND...: the command's exit status must be WANT. Its
# output is left in $out/log.
check() {
	local what=$1 want=$2 status=0
	shift 2
	"$@" >"$out/log" 2>&1 </dev/null || status=$?
	verdict "$what" "exit status $status, want $want" test "$status" = "$want"
}

# says WHAT TEXT: the last command's output must contain the text.
says() { verdict "$1" "no '$2' in its output" grep -qF -- "$2" "$out/log"; }

verdict() {
	if "${@:3}"; then
		echo "ok   $1"
		passed=$((passed + 1))
	else
		echo "FAIL $1: $2"
		sed 's/^/     /' "$out/log"
		failed=$((failed + 1))
	fi
}

# QEMU's command line names the guest's directory, which is below TMPDIR.
export TMPDIR=$out
no_qemu() { ! pgrep -f "^qemu-system.*$out/" >/dev/null; }
nothing_left() { no_qemu && ! compgen -G "$out/rdma-guest-*" >/dev/null; }

"$vm" setup
export DEV=none

check "an exit status is passed on" 7 "$vm" run 'echo fine; exit 7'
says "output is passed on" fine
verdict "output is clean" "more than the command's" test "$(cat "$out/log")" = fine

check "output on both descriptors, and by name" 0 "$vm" run 'echo one; echo two >&2; echo three >/dev/stderr'
verdict "output is complete" "not as printed" test "$(sort "$out/log" | xargs)" = "one three two"

TIMEOUT=20 check "a timeout gives 124" 124 "$vm" run 'echo started; sleep 1000'
says "what came before the timeout is shown" started
says "a timeout is explained" "time is up"
verdict "a timeout leaves no guest" "it does" nothing_left

check "what a command leaves running does not hold the guest" 0 "$vm" run 'sleep 1000 & setsid sleep 1000 & echo done'

check "a panic is a failure" 125 "$vm" run 'echo c >/proc/sysrq-trigger; sleep 100'
says "a panic is named" "Kernel panic"
check "a guest that switches itself off is a failure" 125 "$vm" run 'busybox poweroff -f; sleep 100'
KARGS=rdinit=/nonsense check "a guest that does not boot is a failure" 125 "$vm" run true
says "its console is shown" "console ends"
DEV=mlx5 check "an unknown device is refused" 125 "$vm" run true

mkdir "$out/results"
# shellcheck disable=SC2016 # that is for the guest to expand
OUT=$out/results check "results go to the host" 0 "$vm" run 'echo kept >"$OUT/file"'
verdict "results are kept" "no such file" grep -q kept "$out/results/file"
# shellcheck disable=SC2016 # that is for the guest to expand
MEMORY=4000 check "a guest has the memory that is asked for" 0 "$vm" run '(($(awk "/MemTotal/ {print \$2}" /proc/meminfo) > 3500 << 10))'

check "a pair with two good sides is good" 0 "$vm" pair 'barrier x; echo from A' 'barrier x; echo from B'
says "A's output has its name" "A| from A"
says "B's output has its name" "B| from B"
check "a pair whose B fails, fails" 5 "$vm" pair true 'exit 5'
check "a pair whose A fails, fails" 4 "$vm" pair 'exit 4' true
check "a killed guest has done its part" 0 "$vm" pair 'barrier x; peer kill' 'barrier x; sleep 1000'
check "a barrier with nobody behind it fails" 1 "$vm" pair 'barrier x' true
says "it says why" "the peer has ended"

"$vm" run 'echo up; sleep 1000' >"$out/log" 2>&1 &
runner=$!
for ((i = 0; i < 300; i++)); do
	grep -q up "$out/log" && break
	sleep 0.1
done
kill -KILL "$runner"
wait "$runner" 2>/dev/null || true
sleep 0.5
verdict "a killed runner takes its guest along" "it does not" no_qemu
rm -rf "$out"/rdma-guest-*

verdict "nothing is left" "a guest or its directory is" nothing_left
echo
echo "$passed passed, $failed failed"
((failed == 0))
