#!/bin/bash
# Packs the smallest initramfs that can mount this machine's root over 9p, and
# prints its name. usage: initrd.sh CACHE KERNELDIR
set -euo pipefail
cache=$1 kernel=$2
here=$(cd "$(dirname "$0")" && pwd)
init=$here/../guest/init

recipe=$(cat "$0" "$init" | sha256sum)
out=$cache/initrd-${kernel##*/kernel-}-${recipe:0:8}
if [[ -e $out ]]; then
	echo "$out"
	exit 0
fi

work=$(mktemp -d "$cache/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p bin modules proc sys dev host rw root
cp /bin/busybox bin/
cp "$init" init
chmod 755 init

# insmod in this order. busybox cannot read .ko.xz, hence unpacked.
release=$(<"$kernel/release")
modprobe -d "$kernel" -S "$release" -a --show-depends virtio_pci virtio_console 9pnet_virtio 9p overlay |
	awk '$1 == "insmod" && !seen[$2]++ {print $2}' >list
while read -r path; do
	name=$(basename "$path" .xz)
	case $path in
	*.xz) xz -dc "$path" >"modules/$name" ;;
	*) cp "$path" "modules/$name" ;;
	esac
	echo "$name"
done <list >modules/order

find . -mindepth 1 ! -name list | cpio --quiet -o -H newc -R 0:0 >"$work.cpio"
mv "$work.cpio" "$out"
echo "$out"
