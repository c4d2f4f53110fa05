//go:build guest

package tests

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

const (
	unusedIP    = "10.9.0.77"  // nobody answers ARP
	blackHoleIP = "10.9.0.66"  // a neighbour that takes every packet and answers none
	foreignIP   = "10.66.0.66" // behind an interface without RDMA
	noRouteIP   = "203.0.113.1"
)

// soon is how late an answer may come after its deadline, in an emulated guest with two processors.
const soon = 700 * time.Millisecond

func isSiw() bool { return os.Getenv("RDMA_DEV") == "siw" }

func at(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

// holes makes the addresses that lead nowhere, once per guest.
func holes(t *testing.T) {
	t.Helper()
	run(t, "ip", "neigh", "replace", blackHoleIP, "lladdr", "02:00:00:00:00:66", "dev", "d0", "nud", "permanent")
	run(t, "ip", "addr", "replace", "10.66.0.1/24", "dev", "d1")
	run(t, "ip", "neigh", "replace", foreignIP, "lladdr", "02:00:00:00:00:67", "dev", "d1", "nud", "permanent")
	run(t, "sysctl", "-qw", "net.ipv4.tcp_syn_retries=1")
}

// fails dials and wants an error that is one of want, at most limit after the call.
func fails(t *testing.T, ctx context.Context, to netip.AddrPort, limit time.Duration, want ...error) error {
	t.Helper()
	begin := time.Now()
	e, _, err := dial(ctx, to, params)
	if took := time.Since(begin); took > limit {
		t.Errorf("dial of %v took %v, want at most %v", to, took, limit)
	}
	if err == nil {
		e.close()
		t.Errorf("dial of %v succeeded", to)
		return nil
	}
	for _, w := range want {
		if errors.Is(err, w) {
			return err
		}
	}
	t.Errorf("dial of %v: %v, want one of %v", to, err, want)
	return err
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestBothCoreRefused(t *testing.T) {
	err := fails(t, within(t, patience), at(addr, 4711), 5*time.Second, syscall.ECONNREFUSED)
	var rejected *cm.RejectedError
	if !errors.As(err, &rejected) {
		t.Fatalf("%v is no RejectedError", err)
	}
	if !isSiw() && rejected.Reason != cm.RejectNoListener {
		t.Errorf("reason %d", rejected.Reason)
	}
}

func TestBothCoreRejected(t *testing.T) {
	ln := listen(t, addr)
	done := make(chan error, 1)
	go func() {
		req, err := ln.Accept(t.Context())
		if err == nil {
			err = req.Reject([]byte("not today"))
			err = errors.Join(err, req.Close())
		}
		done <- err
	}()
	err := fails(t, within(t, patience), ln.Addr(), 5*time.Second, syscall.ECONNREFUSED)
	var rejected *cm.RejectedError
	if !errors.As(err, &rejected) {
		t.Fatalf("%v is no RejectedError", err)
	}
	if !isSiw() && rejected.Reason != cm.RejectConsumer {
		t.Errorf("reason %d", rejected.Reason)
	}
	if !strings.HasPrefix(string(rejected.PrivateData), "not today") {
		t.Errorf("private data %q", rejected.PrivateData)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBothCorePrivateData(t *testing.T) {
	ln := listen(t, addr)
	p, r := params, params
	p.PrivateData, r.PrivateData = []byte(strings.Repeat("q", cm.MaxRequestData)), []byte(strings.Repeat("r", cm.MaxReplyData))
	got := make(chan cm.ConnParam, 1)
	var b *end
	go func() {
		var asked cm.ConnParam
		var err error
		if b, asked, err = accept(t.Context(), ln, r); err != nil {
			t.Error(err)
		}
		got <- asked
	}()
	a, reply, err := dial(within(t, patience), ln.Addr(), p)
	if err != nil {
		t.Fatal(err)
	}
	asked := <-got
	if string(asked.PrivateData) != string(p.PrivateData) || string(reply.PrivateData) != string(r.PrivateData) {
		t.Errorf("private data %q, %q", asked.PrivateData, reply.PrivateData)
	}
	if err := errors.Join(a.close(), b.close()); err != nil {
		t.Error(err)
	}
	p.PrivateData = make([]byte, cm.MaxRequestData+1)
	if _, _, err := dial(within(t, patience), ln.Addr(), p); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("too much private data: %v", err)
	}
}

func TestBothCoreUnreachable(t *testing.T) {
	holes(t)
	fails(t, within(t, patience), at(noRouteIP, 4711), 5*time.Second, syscall.ENETUNREACH)
	fails(t, within(t, patience), at(foreignIP, 4711), 5*time.Second, verbs.ErrNoDevice)
	fails(t, within(t, patience), at(unusedIP, 4711), 6*time.Second, syscall.EHOSTUNREACH)
	fails(t, within(t, 300*time.Millisecond), at(unusedIP, 4711), 300*time.Millisecond+soon, context.DeadlineExceeded)
	fails(t, within(t, 300*time.Millisecond), at(blackHoleIP, 4711), 300*time.Millisecond+soon, context.DeadlineExceeded)
	if _, err := system.Listen(at("10.66.0.1", 0), cm.ListenOptions{}); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("listening on an interface without RDMA: %v", err)
	}
	if _, err := system.Listen(at(unusedIP, 0), cm.ListenOptions{}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listening on a foreign address: %v", err)
	}
}

func TestBothCoreNeverAccepts(t *testing.T) {
	ln := listen(t, addr)
	fails(t, within(t, time.Second), ln.Addr(), time.Second+soon, context.DeadlineExceeded)

	// The request that was given up fails for him who accepts it late.
	req, err := ln.Accept(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	if !isSiw() { // there the kernel waits for the answer
		closing.Wait()
	}
	time.Sleep(200 * time.Millisecond)
	e, err := newEnd(req)
	if err == nil {
		err = errors.Join(req.Accept(within(t, time.Second), params), e.close())
	}
	// On iWARP the kernel still waits for the answer, and the connection may come to be.
	if err == nil && isSiw() {
		return
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("accepting a request that was given up: %v", err)
	}
}

func TestBothCoreAddrInUse(t *testing.T) {
	ln := listen(t, addr)
	if ln.Addr().Port() == 0 {
		t.Error("port 0")
	}
	if _, err := system.Listen(ln.Addr(), cm.ListenOptions{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
}

func TestBothCoreAcceptEnds(t *testing.T) {
	ln := listen(t, addr)
	begin := time.Now()
	if _, err := ln.Accept(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("accept past its deadline: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { ln.Close() })
	if _, err := ln.Accept(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("took %v", took)
	}
}

func TestBothCoreLoopback(t *testing.T) {
	before := resources(t)["cm_id"]
	for _, ip := range []string{"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"} {
		if _, err := system.Resolve(t.Context(), netip.AddrPort{}, at(ip, 4711)); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("dial of %s: %v", ip, err)
		}
		if ln, err := system.Listen(at(ip, 0), cm.ListenOptions{}); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("listener on %s: %v", ip, err)
			ln.Close()
		}
	}
	if after := resources(t)["cm_id"]; after != before {
		t.Errorf("%d cm_ids, were %d", after, before)
	}
}

// resources counts what "rdma resource" and /proc list for this process. The kernel notes the thread that made an object.
func resources(t *testing.T) map[string]int {
	t.Helper()
	threads := make(map[int]bool)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		id, _ := strconv.Atoi(task.Name())
		threads[id] = true
	}
	count := make(map[string]int)
	for _, kind := range []string{"qp", "mr", "cm_id", "pd", "cq"} {
		var list []struct {
			PID  int
			Comm string
		}
		if err := json.Unmarshal([]byte(run(t, "rdma", "-j", "resource", "show", kind)), &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if threads[r.PID] || r.PID == 0 && !strings.HasPrefix(r.Comm, "[") && r.Comm != "ib_core" {
				count[kind]++
			}
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count["fd"] = len(fds)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, ok := strings.CutPrefix(line, "Threads:"); ok {
			count["thread"], _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return count
}
