#!/bin/bash
# Fetches a stock Debian kernel, adds the siw module that Debian leaves out, and
# prints the directory that holds them:
#
#	vmlinux  release  lib/modules/RELEASE/
#
# Nothing of it is installed on this machine. usage: kernel.sh CACHE
set -euo pipefail
cache=$1

say() { echo "testbed: $*" >&2; }
newest() { find "$cache" -maxdepth 1 -name 'kernel-*' | sort -V | tail -n 1; }

# unpack VMLINUZ: the kernel in it, for the guest would take seconds to do it.
# The boot protocol's header tells where the compressed part is.
unpack() {
	local sectors offset length
	sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1")
	offset=$(od -An -tu4 -j $((0x248)) -N 4 "$1")
	length=$(od -An -tu4 -j $((0x24c)) -N 4 "$1")
	dd if="$1" bs=64K iflag=skip_bytes,count_bytes status=none \
		skip=$(((sectors + 1) * 512 + offset)) count="$length" | xz -dc --single-stream
}

# What the guest loads by name later; unpacked here since decompressing xz under
# emulation is slow. The crc32 ones are found by hash name at run time, so no
# dependency lists them; without them rxe says only "failed to add".
modules=(
	ib_uverbs ib_umad rdma_rxe rdma_ucm siw
	crc32_generic crc32_pclmul crc32c_generic
	veth dummy virtio_net sch_netem sch_ingress cls_u32 act_gact
)

have=$(newest)
if [[ $have ]]; then
	echo "$have"
	exit 0
fi

((EUID)) || apt-get -qq update
image=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
if [[ ! $image ]]; then
	say "apt knows no linux-image-amd64 (Debian only; try apt-get update as root)"
	exit 1
fi
version=$(apt-cache show --no-all-versions "$image" | awk '/^Version:/ {print $2}')
release=${image#linux-image-}             # 6.1.0-57-amd64
series=$(cut -d. -f1,2 <<<"$release")     # 6.1
abi=${release%-amd64}

work=$(mktemp -d "$cache/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{debs,root,src,out}

# Headers and source must be of the image's very version, or siw will not load.
say "fetching $image $version with its headers and source"
cd "$work/debs"
for p in "$image" "linux-headers-$release" "linux-headers-$abi-common" "linux-kbuild-$series" "linux-source-$series"; do
	if ! apt-get -qq -o APT::Sandbox::User=root download "$p=$version" 2>"$work/err"; then
		say "cannot fetch $p of version $version, which $image needs: $(tail -n 1 "$work/err")"
		exit 1
	fi
done
for p in linux-image linux-headers linux-kbuild; do
	for deb in "$p"-*.deb; do dpkg -x "$deb" "$work/root"; done
done

say "building siw"
headers=$work/root/usr/src/linux-headers-$release
sed -i "s|/usr/src/|$work/root/usr/src/|" "$headers/Makefile"
cd "$work/src"
dpkg --fsys-tarfile "$work"/debs/linux-source-*.deb |
	tar -xO "./usr/src/linux-source-$series.tar.xz" |
	tar -xJ --strip-components=1 "linux-source-$series/drivers/infiniband/sw/siw"
siw=$work/src/drivers/infiniband/sw/siw
if ! make -C "$headers" M="$siw" CONFIG_RDMA_SIW=m modules >"$work/err" 2>&1; then
	say "siw did not build:"
	tail -n 20 "$work/err" >&2
	exit 1
fi

cd "$work/out"
unpack "$work/root/boot/vmlinuz-$release" >vmlinux
echo "$release" >release
mkdir lib
mv "$work/root/lib/modules" lib/
mkdir "lib/modules/$release/extra"
cp "$siw/siw.ko" "lib/modules/$release/extra/"
depmod -b "$PWD" "$release"
modprobe -d "$PWD" -S "$release" -a --show-depends "${modules[@]}" |
	awk '$2 ~ /\.xz$/ {print $2}' | sort -u | xargs -r unxz
depmod -b "$PWD" "$release"

mv -T "$work/out" "$cache/kernel-${release}_$version"
newest
