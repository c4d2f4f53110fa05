package vm

import (
	"fmt"
	"path/filepath"
	"strings"
)

// File descriptors that QEMU inherits, in the order of ExtraFiles.
const (
	fdOutput  = 3 + iota // the command's output
	fdControl            // requests of the guest
	fdMonitor            // our requests to QEMU
	fdCable              // the other guest of a pair
)

// Port of the guest's shell. The console has the other one.
const shellPort = "ttyS1"

// qemuArgs is QEMU's command line for m.
func (b *Bed) qemuArgs(m *machine) []string {
	cpus, memory := 2, 3072
	if m.role != "" { // two guests share this machine
		cpus, memory = 1, 1500
	}
	if m.spec.Memory > 0 {
		memory = m.spec.Memory
	}
	kargs := "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off no5lvl nowatchdog random.trust_cpu=on net.ifnames=0 " + m.spec.KArgs

	args := []string{
		"-M", "q35", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", fmt.Sprint(cpus), "-m", fmt.Sprint(memory),
		"-kernel", filepath.Join(b.kernel, "vmlinux"), "-initrd", b.initrd, "-append", strings.TrimSpace(kargs),
		"-chardev", "file,id=console,path=" + escape(m.console()), "-serial", "chardev:console",
	}
	if m.spec.Shell {
		args = append(args, "-chardev", "stdio,id=shell,signal=off", "-serial", "chardev:shell")
	}
	args = append(args,
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=out,fd=%d", fdOutput), "-device", "virtserialport,chardev=out,name=out",
		"-chardev", fmt.Sprintf("socket,id=ctl,fd=%d", fdControl), "-device", "virtserialport,chardev=ctl,name=ctl",
		"-chardev", fmt.Sprintf("socket,id=mon,fd=%d", fdMonitor), "-mon", "chardev=mon,mode=control",
		"-virtfs", "local,mount_tag=host,path=/,security_model=passthrough,readonly=on,multidevs=remap",
		"-virtfs", "local,mount_tag=run,path="+escape(m.dir)+",security_model=none,readonly=on",
		"-virtfs", "local,mount_tag=out,path="+escape(m.spec.Out)+",security_model=none",
	)
	if m.role != "" {
		mac := map[string]string{"A": "52:54:00:00:00:01", "B": "52:54:00:00:00:02"}[m.role]
		args = append(args,
			"-netdev", fmt.Sprintf("socket,id=cable,fd=%d", fdCable),
			"-device", "virtio-net-pci,netdev=cable,romfile=,mac="+mac,
		)
	}
	return args
}

// escape protects a path in an option list of QEMU's.
func escape(path string) string { return strings.ReplaceAll(path, ",", ",,") }
