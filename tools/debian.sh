# Packages on Debian. To be sourced; say, a function that prints a message, is the caller's.
# shellcheck shell=bash

# install_missing PACKAGE... installs those that are missing. Without root it names them and fails.
install_missing() {
	local installed p missing=()
	installed=" $(dpkg-query -W -f='${Package}:${db:Status-Status} ' "$@" 2>/dev/null || true)"
	for p in "$@"; do
		[[ $installed == *" $p:installed "* ]] || missing+=("$p")
	done
	((${#missing[@]})) || return 0
	if ((EUID != 0)); then
		say "missing packages; as root: apt-get install --no-install-recommends ${missing[*]}"
		return 1
	fi
	say "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
	# Go's build cache does not notice new C headers: a build made without them would be used again.
	if [[ " ${missing[*]} " == *-dev* ]]; then
		go clean -cache
	fi
}
