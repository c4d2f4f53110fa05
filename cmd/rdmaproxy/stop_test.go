package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const asProxy = "RDMAPROXY_TEST_RUN"

// TestMain lets a test start this program as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process runs rdmaproxy in a process of its own until the end of the test.
func process(t testing.TB, args ...string) (*instance, *os.Process) {
	t.Helper()
	cmd := exec.Command(os.Args[0], testArgs(args)...)
	cmd.Env = append(os.Environ(), asProxy+"=1")
	// A pipe of our own: Wait must not be called before all of it was read, but its status is wanted at once.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	w.Close()
	i := &instance{status: make(chan int, 1), signal: func(s os.Signal) { cmd.Process.Signal(s) }}
	go func() {
		cmd.Wait()
		i.status <- cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { r.Close() })
	i.ready(t, r)
	return i, cmd.Process
}

// processes are a chain of two processes.
func processes(t testing.TB, backend string, flags ...string) (front, back *instance, frontProcess, backProcess *os.Process) {
	t.Helper()
	back, backProcess = process(t, append(flags, "rdma://127.0.0.1:0=tcp://"+backend)...)
	front, frontProcess = process(t, append(flags, "tcp://127.0.0.1:0=rdma://"+back.addrs[0])...)
	return front, back, frontProcess, backProcess
}

// Connections that are open when the process is told to stop go on and end in order; new ones are refused.
func TestTermDrains(t *testing.T) {
	front, back, _, _ := processes(t, serve(t, "tcp", echo).String())
	c := dialAt(t, "tcp", front.addrs[0])
	roundTrip(t, c, "before")
	for _, i := range []*instance{back, front} {
		i.signal(syscall.SIGTERM)
		eventually(t, "it stops", func() bool { return i.stopping(t) })
		require.Contains(t, i.get(t, "/"), "STOPPING")
	}
	eventually(t, "new ones are refused", func() bool {
		nc, err := net.Dial("tcp", front.addrs[0])
		if err == nil {
			nc.Close()
		}
		return err != nil
	})
	const size = 1 << 20
	go func() {
		io.Copy(c, bytesOf(1, size))
		c.CloseWrite()
	}()
	got, _, err := hashOf(c)
	require.NoError(t, err)
	want, _, _ := hashOf(bytesOf(1, size))
	require.Equal(t, want, got)
	for _, i := range []*instance{back, front} {
		require.Equal(t, exitOK, receive(t, i.status), i.log)
	}
}

// What has not ended when -drain is over is reset; the status says so.
func TestDrainEnds(t *testing.T) {
	front, back, _, _ := processes(t, serve(t, "tcp", echo).String(), "-drain=500ms")
	c := dialAt(t, "tcp", front.addrs[0])
	roundTrip(t, c, "before")
	start := time.Now()
	front.signal(syscall.SIGTERM)
	wantReset(t, c)
	require.GreaterOrEqual(t, time.Since(start), 500*time.Millisecond)
	require.Equal(t, exitReset, receive(t, front.status), front.log)
	eventually(t, "the other one saw a reset", func() bool { return back.sum(t, "errors_total", `kind="reset"`) == 1 })
	back.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, receive(t, back.status), back.log)
}

// A second signal ends the drain at once, whichever of the two signals they are.
func TestSecondSignal(t *testing.T) {
	for _, first := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		front, _, _, _ := processes(t, serve(t, "tcp", echo).String())
		c := dialAt(t, "tcp", front.addrs[0])
		roundTrip(t, c, "before")
		front.signal(first)
		eventually(t, "it stops", func() bool { return front.stopping(t) })
		roundTrip(t, c, "still there")
		front.signal(syscall.SIGTERM)
		wantReset(t, c)
		require.Equal(t, exitReset, receive(t, front.status), front.log)
	}
}

// A process without connections ends at once. One whose connection waits for a place, or for its backend, resets that.
func TestStopWhileWaiting(t *testing.T) {
	p, _ := process(t, "rdma://127.0.0.1:0=tcp://127.0.0.1:1")
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, receive(t, p.status), p.log)

	addr, conns := handOver(t, "tcp")
	back := start(t, "rdma://127.0.0.1:0=tcp://"+addr.String())
	front, _ := process(t, "tcp://127.0.0.1:0?max=1=rdma://"+back.addrs[0])
	one := dialAt(t, "tcp", front.addrs[0])
	receive(t, conns)
	two := dialAt(t, "tcp", front.addrs[0])
	eventually(t, "it waits", func() bool { return front.sum(t, "connections_waiting", "") == 1 })
	front.signal(syscall.SIGTERM)
	wantReset(t, two)
	require.NoError(t, one.CloseWrite())
	require.Equal(t, 1, front.open(t))
	front.signal(syscall.SIGTERM)
	require.Equal(t, exitReset, receive(t, front.status), front.log)

	silent := silentListener(t)
	front, _ = process(t, "tcp://127.0.0.1:0=rdma://"+silent, "-dial-timeout=1h")
	c := dialAt(t, "tcp", front.addrs[0])
	eventually(t, "it dials", func() bool { return front.sum(t, "connections_total", "") == 1 })
	front.signal(syscall.SIGTERM)
	eventually(t, "it stops", func() bool { return front.stopping(t) })
	front.signal(syscall.SIGTERM)
	wantReset(t, c)
	require.Equal(t, exitReset, receive(t, front.status), front.log)
}

// A proxy that is killed in the middle of transfers: who is behind the other one sees a reset, and nothing is kept there.
func TestProxyKilled(t *testing.T) {
	for _, who := range []string{"front", "back"} {
		t.Run(who, func(t *testing.T) {
			addr, conns := handOver(t, "tcp")
			front, back, frontProcess, backProcess := processes(t, addr.String())
			c := dialAt(t, "tcp", front.addrs[0])
			backend := receive(t, conns)
			written := make(chan error, 1)
			go func() {
				_, err := io.Copy(c, bytesOf(1, 1<<40))
				written <- err
			}()
			_, err := io.CopyN(io.Discard, backend, 1<<20)
			require.NoError(t, err)
			survivor := back
			if who == "front" {
				require.NoError(t, frontProcess.Kill())
				wantReset(t, backend)
				require.Error(t, receive(t, written))
			} else {
				survivor = front
				require.NoError(t, backProcess.Kill())
				_, err := io.Copy(io.Discard, c)
				require.ErrorIs(t, errors.Join(err, receive(t, written)), syscall.ECONNRESET)
			}
			eventually(t, "the connection ends", func() bool { return survivor.open(t) == 0 })
			eventually(t, "the reset is counted", func() bool { return survivor.sum(t, "errors_total", `kind="reset"`) == 1 })
		})
	}
}
