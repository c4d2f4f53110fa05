package vm

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeBed has a QEMU that is a shell script: descriptor 3 is the output, 4 the
// control port. It keeps its process id in the file pid.
func fakeBed(t *testing.T, script string) (bed *Bed, alive func() bool) {
	t.Helper()
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	script = "#!/bin/bash\necho $$ >>" + pid + "\nask() { echo \"$*\" >&4; read -r answer <&4; }\n" + script
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return &Bed{root: dir, kernel: dir, initrd: dir}, func() bool {
		b, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(b)) {
			if _, err := os.Stat("/proc/" + pid); err == nil {
				return true
			}
		}
		return false
	}
}

func TestRunStatusAndOutput(t *testing.T) {
	bed, alive := fakeBed(t, "ask ready; echo hello >&3; ask exit 7; sleep 100")
	var out bytes.Buffer
	started := false
	r := bed.Run(t.Context(), Spec{Command: "x", Stdout: &out, OnStart: func() { started = true }})
	if r.Status != 7 || r.Err != nil {
		t.Errorf("result %+v, want status 7", r)
	}
	if out.String() != "hello\n" {
		t.Errorf("output %q", out.String())
	}
	if !started {
		t.Error("OnStart was not called")
	}
	if alive() {
		t.Error("QEMU is still there")
	}
}

func TestRunTimeout(t *testing.T) {
	bed, alive := fakeBed(t, "exec sleep 100")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if r := bed.Run(ctx, Spec{}); r.Status != StatusTimeout || r.Err == nil {
		t.Errorf("result %+v, want a timeout", r)
	}
	if alive() {
		t.Error("QEMU is still there")
	}
}

func TestRunInterrupted(t *testing.T) {
	bed, alive := fakeBed(t, "ask ready; exec sleep 100")
	ctx, cancel := context.WithCancel(t.Context())
	if r := bed.Run(ctx, Spec{OnStart: cancel}); r.Status != StatusInterrupted {
		t.Errorf("result %+v, want interrupted", r)
	}
	if alive() {
		t.Error("QEMU is still there")
	}
}

func TestRunGuestDown(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"quietly":   {"exit 0", "guest went down"},
		"qemu":      {"echo no such option >&2; exit 1", "qemu: no such option"},
		"panic":     {`for a; do case $a in file,id=console,path=*) echo "Kernel panic - not syncing" >"${a#*path=}";; esac; done`, "guest kernel failed: Kernel panic"},
		"by signal": {"kill -9 $$", "guest went down"},
	} {
		t.Run(name, func(t *testing.T) {
			bed, _ := fakeBed(t, c.script)
			r := bed.Run(t.Context(), Spec{})
			if r.Status != StatusGuestDown || r.Err == nil || !strings.Contains(r.Err.Error(), c.want) {
				t.Errorf("result %+v, want an error with %q", r, c.want)
			}
		})
	}
}

func TestRunRefusesDevice(t *testing.T) {
	bed := &Bed{}
	if r := bed.Run(t.Context(), Spec{Dev: "mlx5"}); r.Err == nil {
		t.Error("an unknown device was accepted")
	}
	if a, _ := bed.RunPair(t.Context(), Spec{Dev: "rxe,siw"}, Spec{}); a.Err == nil {
		t.Error("two devices on one interface were accepted")
	}
}

// The fakes of a pair know by their mac address which they are.
const whichScript = `role=A; [[ $* == *mac=52:54:00:00:00:02* ]] && role=B
ask ready
`

func TestRunPairWaitsForBoth(t *testing.T) {
	bed, alive := fakeBed(t, whichScript+`
if [[ $role == A ]]; then ask exit 0; else sleep 0.3; ask exit 3; fi; exec sleep 100`)
	a, b := bed.RunPair(t.Context(), Spec{}, Spec{})
	if a.Status != 0 || a.Err != nil || b.Status != 3 || b.Err != nil {
		t.Errorf("results %+v, %+v; want 0 and 3", a, b)
	}
	if alive() {
		t.Error("a QEMU is still there")
	}
}

func TestRunPairKill(t *testing.T) {
	bed, alive := fakeBed(t, whichScript+`
if [[ $role == B ]]; then exec sleep 100; fi
ask peer kill; ask exit 0; exec sleep 100`)
	a, b := bed.RunPair(t.Context(), Spec{}, Spec{})
	if a.Status != 0 || a.Err != nil || !b.Killed || b.Err != nil {
		t.Errorf("results %+v, %+v; want B killed", a, b)
	}
	if alive() {
		t.Error("a QEMU is still there")
	}
}

// The guests' ends of the cable are connected to each other.
func TestRunPairCable(t *testing.T) {
	bed, _ := fakeBed(t, whichScript+`
if [[ $role == A ]]; then echo ping >&6; else read -r x <&6; [[ $x == ping ]] || ask exit 1; fi; ask exit 0; exec sleep 100`)
	if a, b := bed.RunPair(t.Context(), Spec{}, Spec{}); a.Status+b.Status != 0 {
		t.Errorf("results %+v, %+v", a, b)
	}
}

func TestQEMUDiesWithUs(t *testing.T) {
	m := newMachine("", Spec{})
	bed, _ := fakeBed(t, "exec sleep 100")
	defer m.close()
	if err := bed.start(m, nil); err != nil {
		t.Fatal(err)
	}
	if m.qemu.SysProcAttr.Pdeathsig != syscall.SIGKILL {
		t.Error("QEMU would outlive us")
	}
}
