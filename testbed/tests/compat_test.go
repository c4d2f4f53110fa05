//go:build guest

package tests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests of compat/servers on the guest's device: other people's servers and clients. Each runs its row on plain TCP, on the device, and
// there with rings of 4 KiB. What they add to the matrix of docs/compat.md is logged, for tools/compat.sh.

// compatPatience is for a row: an emulated processor takes its time.
const compatPatience = 4 * time.Minute

func TestRxeCompatChildren(t *testing.T)         { row(t) }
func TestRxeCompatFastHTTP(t *testing.T)         { row(t) }
func TestRxeCompatGRPC(t *testing.T)             { row(t) }
func TestRxeCompatGRPCTLS(t *testing.T)          { row(t) }
func TestRxeCompatH2C(t *testing.T)              { row(t) }
func TestRxeCompatHTTP1(t *testing.T)            { row(t) }
func TestRxeCompatHTTP2TLS(t *testing.T)         { row(t) }
func TestRxeCompatKillGRPC(t *testing.T)         { row(t, "COMPAT_ANSWERS=1000") }
func TestRxeCompatKillHTTP1(t *testing.T)        { row(t, "COMPAT_ANSWERS=1000") }
func TestRxeCompatKillHTTP2(t *testing.T)        { row(t, "COMPAT_ANSWERS=1000") }
func TestRxeCompatMQTT(t *testing.T)             { row(t) }
func TestRxeCompatNATS(t *testing.T)             { row(t) }
func TestRxeCompatNetRPC(t *testing.T)           { row(t) }
func TestRxeCompatProxyPair(t *testing.T)        { row(t) }
func TestRxeCompatRealPostgres(t *testing.T)     { row(t) }
func TestRxeCompatRealRedis(t *testing.T)        { row(t) }
func TestRxeCompatRedis(t *testing.T)            { row(t) }
func TestRxeCompatSSH(t *testing.T)              { row(t) }
func TestRxeCompatTLS(t *testing.T)              { row(t) }
func TestRxeCompatWebSocketCoder(t *testing.T)   { row(t) }
func TestRxeCompatWebSocketGorilla(t *testing.T) { row(t) }
func TestRxeCompatYamux(t *testing.T)            { row(t) }

// Each test of compat/servers is run by one of the above.
func TestRxeCompatEach(t *testing.T) {
	ours := strings.Fields(run(t, os.Args[0], "-test.list", "."))
	for _, name := range strings.Fields(run(t, program("servers.test"), "-test.list", ".")) {
		if here := "TestRxeCompat" + strings.TrimPrefix(name, "Test"); !slices.Contains(ours, here) {
			t.Errorf("no %s runs the test of compat/servers", here)
		}
	}
}

// On an iWARP device the TCP port is the device's, so there is no plain TCP to compare with; see TestSiwCompatListen.
func TestSiwCompatHTTP1(t *testing.T) { row(t, "COMPAT_LINKS=rdma,4KiB") }
func TestSiwCompatGRPC(t *testing.T)  { row(t, "COMPAT_LINKS=rdma,4KiB") }
func TestSiwCompatRedis(t *testing.T) { row(t, "COMPAT_LINKS=rdma,4KiB") }

// redis-benchmark and pgbench run to the end through two rdmaproxies, with rings as they are and with small ones.
func TestRxeCompatBenchmarks(t *testing.T)     { benchmarks(t, "rxe rdma", "") }
func TestRxeCompatBenchmarks4KiB(t *testing.T) { benchmarks(t, "rxe 4KiB", "-ring=4KiB") }

func benchmarks(t *testing.T, column, flags string) {
	ctx, cancel := context.WithTimeout(t.Context(), compatPatience)
	defer cancel()
	seeMatrix(t, func(matrix string) {
		cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("REPO"), "tools", "proxy-real.sh"))
		cmd.Env = append(os.Environ(), "ADDR="+addr, "RCONN_DEVICE=rxe0", "RDMAPROXY="+program("rdmaproxy"), "FLAGS="+flags, "REQUESTS=1600",
			"TRANSACTIONS=10", "SCALE=1", "COLUMN="+column, "MATRIX="+matrix)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			t.Log("seen: " + strings.TrimSpace(line))
		}
	})
}

// Two guests whose network takes 20 ms each way and loses a packet of a hundred.
func TestPairRxeCompatHTTP1(t *testing.T) { pairRow(t) }
func TestPairRxeCompatGRPC(t *testing.T)  { pairRow(t) }
func TestPairRxeCompatRedis(t *testing.T) { pairRow(t) }

// row runs a test of compat/servers: of TestRxeCompatX that is TestX.
func row(t *testing.T, env ...string) {
	ctx, cancel := context.WithTimeout(t.Context(), compatPatience)
	defer cancel()
	passed(ctx, t, func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Env, env...)
		return cmd.Run()
	})
}

// pairRow has the server of a row in guest A and its client in B, with default rings.
func pairRow(t *testing.T) {
	need(t, "cable")
	ctx, cancel := context.WithTimeout(t.Context(), compatPatience)
	defer cancel()
	run(t, "cable", "netem", "delay", "20ms", "loss", "1%")
	if role == "B" {
		barrier(t, "serving")
		passed(ctx, t, func(cmd *exec.Cmd) error {
			cmd.Env = append(cmd.Env, "COMPAT_ROLE=client", "COMPAT_LINKS=rdma")
			return cmd.Run()
		})
		run(t, "barrier", "served", "300")
		return
	}
	passed(ctx, t, func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Env, "COMPAT_ROLE=server", "COMPAT_LINKS=rdma")
		until, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		out := cmd.Stdout.(*lockedBuffer)
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

// passed has run run a test of compat/servers, and wants it to end well, not without having run.
func passed(ctx context.Context, t *testing.T, run func(*exec.Cmd) error) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "Compat")
	name = "Test" + name
	seeMatrix(t, func(matrix string) {
		var out lockedBuffer
		cmd := exec.CommandContext(ctx, program("servers.test"), "-test.run=^"+name+"$", "-test.v")
		cmd.Env = append(os.Environ(), "RCONN_DEVICE="+os.Getenv("RDMA_DEV")+"0", "RDMAPROXY="+program("rdmaproxy"), "MATRIX="+matrix)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := run(cmd); err != nil || !strings.Contains(out.String(), "--- PASS: "+name+" ") {
			t.Errorf("%s: %v\n%s", name, err, tail(out.String()))
		}
	})
}

// seeMatrix has what run writes to the file matrix seen.
func seeMatrix(t *testing.T, run func(matrix string)) {
	t.Helper()
	matrix := filepath.Join(t.TempDir(), "matrix")
	run(matrix)
	lines, err := os.ReadFile(matrix)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for line := range strings.Lines(string(lines)) {
		t.Log("seen: matrix\t" + strings.TrimSpace(line))
	}
}

// tail is the end of what a program says; libraries talk a lot.
func tail(s string) string {
	if len(s) > 10_000 {
		s = "..." + s[len(s)-10_000:]
	}
	return s
}
