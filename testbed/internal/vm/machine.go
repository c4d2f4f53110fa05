package vm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// A machine is one running QEMU.
type machine struct {
	role string // A or B in a pair, else empty
	spec Spec
	dir  string // what the guest reads at its start, and its console
	qemu *exec.Cmd

	conns   []net.Conn // output, control, monitor
	monitor *monitor

	drained chan struct{} // closed when all output has been copied
	exited  chan struct{} // closed when QEMU is gone

	once  sync.Once
	ended chan struct{} // closed when the command has ended, well or not
	cause error         // why; an exitStatus if the command came to its end
}

// exitStatus is the cause of a command's proper end.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// errDown is the cause when QEMU ended by itself.
var errDown = errors.New("guest went down before its command ended")

func newMachine(role string, spec Spec) *machine {
	spec.setDefaults()
	return &machine{
		role: role, spec: spec,
		drained: make(chan struct{}), exited: make(chan struct{}), ended: make(chan struct{}),
	}
}

// endWith notes why the command has ended. The first cause stands.
func (m *machine) endWith(cause error) {
	m.once.Do(func() {
		m.cause = cause
		close(m.ended)
	})
}

func (m *machine) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

func (m *machine) console() string { return filepath.Join(m.dir, "console") }

// start boots m. The cable, if any, is QEMU's from then on.
func (b *Bed) start(m *machine, cable *os.File) (err error) {
	if m.dir, err = os.MkdirTemp("", "rdma-guest-"); err != nil {
		return err
	}
	if m.spec.Out == "" {
		m.spec.Out = filepath.Join(m.dir, "out")
	}
	if err := os.MkdirAll(m.spec.Out, 0o777); err != nil {
		return err
	}
	if m.spec.Out, err = filepath.Abs(m.spec.Out); err != nil {
		return err
	}
	if err := b.writeOrders(m); err != nil {
		return err
	}

	// Socket pairs need neither names nor ports, and end when QEMU does.
	var inherit []*os.File
	defer func() {
		for _, f := range inherit {
			f.Close()
		}
	}()
	for _, name := range []string{"output", "control", "monitor"} {
		ours, theirs, err := socketPair(name)
		if err != nil {
			return err
		}
		inherit = append(inherit, theirs)
		conn, err := net.FileConn(ours)
		ours.Close()
		if err != nil {
			return err
		}
		m.conns = append(m.conns, conn)
	}
	m.monitor = newMonitor(m.conns[2])
	if cable != nil {
		inherit = append(inherit, cable)
	}

	m.qemu = exec.Command("qemu-system-x86_64", b.qemuArgs(m)...)
	m.qemu.ExtraFiles = inherit
	m.qemu.Stderr = &tail{}
	if m.spec.Shell {
		m.qemu.Stdin, m.qemu.Stdout = os.Stdin, os.Stdout
	}
	m.qemu.SysProcAttr = dieWithUs()
	if err := m.qemu.Start(); err != nil {
		return err
	}

	go func() {
		defer close(m.drained)
		io.Copy(m.spec.Stdout, m.conns[0])
	}()
	go func() {
		m.qemu.Wait()
		close(m.exited)
		m.endWith(errDown)
	}()
	return nil
}

// writeOrders leaves in m.dir what the guest's scripts read.
func (b *Bed) writeOrders(m *machine) error {
	var env strings.Builder
	set := func(name, value string) {
		fmt.Fprintf(&env, "%s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	set("HOME", os.Getenv("HOME"))
	if path, err := exec.LookPath("go"); err == nil {
		set("GO_BIN", filepath.Dir(path))
	}
	set("REPO", b.root)
	set("KERNEL", b.kernel)
	set("RDMA_DEV", m.spec.Dev)
	set("RDMA_ROLE", m.role)
	set("TERMINAL", "")
	if m.spec.Shell {
		set("TERMINAL", shellPort)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "env"), []byte(env.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, "command"), []byte(m.spec.Command+"\n"), 0o644)
}

// result says how m ended, once all is over: m.ended is closed and QEMU killed.
func (m *machine) result() Result {
	<-m.drained
	var status exitStatus
	if errors.As(m.cause, &status) {
		return Result{Status: int(status)}
	}
	console := readConsole(m.console())
	if m.cause == errDown {
		return conclude(m.whyDown(console), console)
	}
	return conclude(m.cause, console)
}

// whyDown is the error of a guest that went down by itself.
func (m *machine) whyDown(console string) error {
	if line := oops(console); line != "" {
		return fmt.Errorf("guest kernel failed: %s", line)
	}
	if complaint := m.qemu.Stderr.(*tail).String(); complaint != "" {
		return fmt.Errorf("qemu: %s", complaint)
	}
	return errDown
}

// kill switches the guest off and waits until QEMU is gone.
func (m *machine) kill() {
	m.qemu.Process.Kill()
	<-m.exited
}

// close switches the guest off, if it ever started, and frees what m holds.
func (m *machine) close() {
	if m.qemu != nil && m.qemu.Process != nil {
		m.kill()
	}
	for _, c := range m.conns {
		c.Close()
	}
	os.RemoveAll(m.dir)
}

// A tail keeps the last of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 2000
	t.b = append(t.b, p...)
	if len(t.b) > most {
		t.b = t.b[len(t.b)-most:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.b)) }
