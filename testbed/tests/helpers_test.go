//go:build guest

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// The guest, as the test bed describes it to its programs.
var (
	addr = os.Getenv("RDMA_ADDR") // own address on the RDMA device
	peer = os.Getenv("RDMA_PEER") // the other guest's, in a pair
	role = os.Getenv("RDMA_ROLE") // A or B in a pair
)

// patience is how long anything may take that should take far less.
const patience = 30 * time.Second

// need fails the test if a program is missing: skipping would hide that the
// test bed is incomplete.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("the test bed lacks a program: %v", err)
		}
	}
}

// run runs a command to its good end and returns its output.
func run(t *testing.T, command ...string) string {
	t.Helper()
	return start(t, command...).wait(t)
}

// A process is a command that runs beside the test. It is killed when the test
// ends, or takes longer than patience.
type process struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
	err  error // valid once done is closed
}

func start(t *testing.T, command ...string) *process {
	t.Helper()
	need(t, command[0])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &process{cmd: exec.CommandContext(ctx, command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
	})
	return p
}

// wait wants the process to end well and returns its output.
func (p *process) wait(t *testing.T) string {
	t.Helper()
	<-p.done
	if p.err != nil {
		t.Fatalf("%v: %v\n%s", p.cmd.Args, p.err, p.out.String())
	}
	return p.out.String()
}

// fails wants the process to end badly.
func (p *process) fails(t *testing.T) {
	t.Helper()
	<-p.done
	if p.err == nil {
		t.Fatalf("%v: ended well\n%s", p.cmd.Args, p.out.String())
	}
}

// listens returns once the process has an RDMA listener.
func (p *process) listens(t *testing.T) {
	t.Helper()
	waitFor(t, strings.Join(p.cmd.Args, " ")+" to listen", func() bool {
		select {
		case <-p.done:
			t.Fatalf("%v: %v before it listened\n%s", p.cmd.Args, p.err, p.out.String())
		default:
		}
		return listening(t, p.cmd.Process.Pid)
	})
}

// listening reports whether process pid has an RDMA listener.
func listening(t *testing.T, pid int) bool {
	t.Helper()
	var ids []struct {
		State string
		PID   int
	}
	if err := json.Unmarshal([]byte(run(t, "rdma", "-j", "resource", "show", "cm_id")), &ids); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		// The kernel names the thread that made the listener.
		thread := fmt.Sprintf("/proc/%d/task/%d", pid, id.PID)
		if _, err := os.Stat(thread); err == nil && id.State == "LISTEN" {
			return true
		}
	}
	return false
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// barrier waits until both guests of a pair have come to it.
func barrier(t *testing.T, name string) {
	t.Helper()
	run(t, "barrier", name)
}

// A lockedBuffer can be read while a process still writes to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
