//go:build guest

package tests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The tests of compat/servers on the guest's device: other people's servers and clients. Each runs its row on plain TCP, on the device, and
// there with rings of 4 KiB.

// compatPatience is for a row: an emulated processor takes its time.
const compatPatience = 4 * time.Minute

// serversCommand runs one of the tests of compat/servers.
func serversCommand(ctx context.Context, name string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program("servers.test"), "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), "RCONN_DEVICE="+os.Getenv("RDMA_DEV")+"0", "RDMAPROXY="+program("rdmaproxy"))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// compat runs one in a guest of its own.
func compat(t *testing.T, name string) {
	ctx, cancel := context.WithTimeout(t.Context(), compatPatience)
	defer cancel()
	passed(t, name, func(out *lockedBuffer) error {
		cmd := serversCommand(ctx, name)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	})
}

// passed wants a test to end well, not without having run.
func passed(t *testing.T, name string, run func(out *lockedBuffer) error) {
	t.Helper()
	var out lockedBuffer
	if err := run(&out); err != nil || !strings.Contains(out.String(), "--- PASS: "+name+" ") {
		t.Fatalf("%s: %v\n%s", name, err, tail(out.String()))
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "--- PASS: "+name+"/") {
			t.Log("seen: ", strings.TrimPrefix(line, "--- PASS: "))
		}
	}
}

// tail is the end of what a program says; libraries talk a lot.
func tail(s string) string {
	if len(s) > 10_000 {
		s = "..." + s[len(s)-10_000:]
	}
	return s
}

func TestRxeCompatHTTP1(t *testing.T)    { compat(t, "TestHTTP1") }
func TestRxeCompatHTTP2TLS(t *testing.T) { compat(t, "TestHTTP2TLS") }
func TestRxeCompatGRPC(t *testing.T)     { compat(t, "TestGRPC") }
func TestRxeCompatRedis(t *testing.T)    { compat(t, "TestRedis") }
func TestRxeCompatSSH(t *testing.T)      { compat(t, "TestSSH") }

// Two guests whose network takes 20 ms each way and loses a packet of a hundred.
func TestPairRxeCompatHTTP1(t *testing.T) { compatPair(t, "TestHTTP1") }
func TestPairRxeCompatGRPC(t *testing.T)  { compatPair(t, "TestGRPC") }
func TestPairRxeCompatRedis(t *testing.T) { compatPair(t, "TestRedis") }

// compatPair has the server of a row in guest A and its client in B, with default rings.
func compatPair(t *testing.T, name string) {
	need(t, "cable")
	ctx, cancel := context.WithTimeout(t.Context(), compatPatience)
	defer cancel()
	run(t, "cable", "netem", "delay", "20ms", "loss", "1%")
	if role == "B" {
		barrier(t, "serving")
		passed(t, name, func(out *lockedBuffer) error {
			cmd := serversCommand(ctx, name, "COMPAT_ROLE=client", "COMPAT_LINKS=rdma")
			cmd.Stdout, cmd.Stderr = out, out
			return cmd.Run()
		})
		run(t, "barrier", "served", "300")
		return
	}
	passed(t, name, func(out *lockedBuffer) error {
		cmd := serversCommand(ctx, name, "COMPAT_ROLE=server", "COMPAT_LINKS=rdma")
		cmd.Stdout, cmd.Stderr = out, out
		until, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		waitFor(t, "the server", func() bool { return bytes.Contains([]byte(out.String()), []byte("serving")) })
		barrier(t, "serving")
		served := exec.CommandContext(ctx, "barrier", "served", "300").Run()
		until.Close()
		if err := cmd.Wait(); err != nil {
			return err
		}
		return served
	})
}
