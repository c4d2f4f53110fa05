package rdmacore

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

func TestEventErrors(t *testing.T) {
	for _, c := range []struct {
		ev   event
		want error
	}{
		{event{typ: cm.AddrError, status: -110}, syscall.EHOSTUNREACH},
		{event{typ: cm.AddrError, status: -101}, syscall.ENETUNREACH},
		{event{typ: cm.AddrError, status: -19}, verbs.ErrNoDevice},
		{event{typ: cm.AddrError, status: -1, lost: syscall.ENODEV}, verbs.ErrNoDevice},
		{event{typ: cm.RouteError, status: -19}, verbs.ErrNoDevice},
		{event{typ: cm.RouteError, status: -110}, syscall.ETIMEDOUT},
		{event{typ: cm.Unreachable, status: -110}, syscall.ETIMEDOUT},
		{event{typ: cm.Unreachable}, syscall.EHOSTUNREACH},
		{event{typ: cm.ConnectError, status: -104}, syscall.ECONNRESET},
		{event{typ: cm.ConnectError, status: -111}, syscall.ECONNREFUSED},
		{event{typ: cm.ConnectError, status: -1, lost: syscall.ENOMEM}, syscall.ENOMEM},
		{event{typ: cm.Rejected, status: 8}, syscall.ECONNREFUSED},
		{event{typ: cm.Rejected, status: 28}, syscall.ECONNREFUSED},
		{event{typ: cm.Rejected, status: -111}, syscall.ECONNREFUSED},
		{event{typ: cm.Rejected, status: -104}, syscall.ECONNREFUSED},
		{event{typ: cm.ConnectResponse}, syscall.ECONNRESET},
		{event{typ: cm.Disconnected}, syscall.ECONNRESET},
		{event{typ: cm.DeviceRemoval}, verbs.ErrDeviceRemoved},
		{event{typ: cm.EventType(200), status: -5}, syscall.ECONNRESET},
	} {
		if err := eventErr(c.ev); !errors.Is(err, c.want) {
			t.Errorf("%v, status %d: %v, want %v", c.ev.typ, c.ev.status, err, c.want)
		}
	}
	var r *cm.RejectedError
	ev := event{typ: cm.Rejected, status: 28, conn: cm.ConnParam{PrivateData: []byte("why")}}
	if !errors.As(eventErr(ev), &r) || r.Reason != cm.RejectConsumer || string(r.PrivateData) != "why" {
		t.Errorf("%+v", r)
	}
	if !errors.As(connectErr(sysErr("rdma_connect", int(syscall.ECONNREFUSED))), &r) {
		t.Error("a refused rdma_connect is no RejectedError")
	}
}

func TestSysErr(t *testing.T) {
	var s *os.SyscallError
	if err := sysErr("ibv_create_cq", int(syscall.ENOMEM)); !errors.As(err, &s) || s.Syscall != "ibv_create_cq" || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	if sysErr("x", 0) != nil || postErr("x", 0) != nil {
		t.Error("an error without an errno")
	}
	if err := postErr("ibv_post_send", int(syscall.ENOMEM)); err != verbs.ErrQueueFull {
		t.Error(err)
	}
	if err := postErr("ibv_post_send", int(syscall.EINVAL)); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := acceptErr(sysErr("rdma_accept", int(syscall.EINVAL))); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	if err := acceptErr(sysErr("rdma_accept", int(syscall.ENOMEM))); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

func TestRegisterErr(t *testing.T) {
	enomem := sysErr("ibv_reg_mr", int(syscall.ENOMEM))
	var m *verbs.MemlockError
	err := registerErr(enomem, 1<<20, 7<<20, 8<<20-1)
	if !errors.As(err, &m) || m.Size != 1<<20 || m.Limit != 8<<20-1 || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	if !strings.Contains(err.Error(), "ulimit -l") {
		t.Error(err)
	}
	for _, limit := range []uint64{8 << 20, rlimInfinity} {
		if err := registerErr(enomem, 1<<20, 7<<20, limit); err != enomem {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	einval := sysErr("ibv_reg_mr", int(syscall.EINVAL))
	if err := registerErr(einval, 1<<20, 7<<20, 0); err != einval {
		t.Error(err)
	}
}

func TestTooManyConnects(t *testing.T) {
	s := newSlots(1)
	if err := s.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.take(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := errTooManyConnects(ctx); !errors.Is(err, cm.ErrTooManyConnects) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.give()
	if err := s.do(func() error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestRefs(t *testing.T) {
	var r refs
	destroyed := 0
	destroy := func() error { destroyed++; return nil }
	if err := r.acquire(); err != nil {
		t.Fatal(err)
	}
	if err := r.close(destroy); err != verbs.ErrBusy || destroyed != 0 {
		t.Errorf("close of an object in use: %v, destroyed %d times", err, destroyed)
	}
	r.release()
	if err := r.close(func() error { return syscall.EBUSY }); err != syscall.EBUSY {
		t.Error(err)
	}
	if err := r.open(); err != nil {
		t.Errorf("after a failed close: %v", err)
	}
	for range 2 {
		if err := r.close(destroy); err != nil {
			t.Error(err)
		}
	}
	if destroyed != 1 || r.open() != verbs.ErrClosed || r.acquire() != verbs.ErrClosed {
		t.Errorf("destroyed %d times, %v, %v", destroyed, r.open(), r.acquire())
	}
}

// TestRefsSecondClose: it returns when the object is gone, not while the first is still at it.
func TestRefsSecondClose(t *testing.T) {
	var r refs
	var gone atomic.Bool
	begun := make(chan struct{})
	go r.close(func() error {
		close(begun)
		time.Sleep(20 * time.Millisecond)
		gone.Store(true)
		return nil
	})
	<-begun
	if err := r.close(func() error { return errors.New("destroyed twice") }); err != nil || !gone.Load() {
		t.Errorf("%v, gone: %v", err, gone.Load())
	}
}

func TestOpenErr(t *testing.T) {
	open := func(errno syscall.Errno) error {
		return openErr(&fs.PathError{Op: "open", Path: "/dev/infiniband/rdma_cm", Err: errno}, "rdma_ucm")
	}
	for errno, hint := range map[syscall.Errno]string{
		syscall.ENOENT: "modprobe rdma_ucm",
		syscall.EACCES: "read and write access",
		syscall.EPERM:  "read and write access",
		syscall.ENXIO:  "no such device",
	} {
		if err := open(errno); !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), hint) {
			t.Error(err)
		}
	}
	// What the process ran out of is no missing device.
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		for _, err := range []error{open(errno), libraryErr(sysErr("rdma_create_event_channel", int(errno)))} {
			if errors.Is(err, verbs.ErrNoDevice) || !errors.Is(err, errno) {
				t.Error(err)
			}
		}
	}
	if err := libraryErr(sysErr("rdma_get_devices", int(syscall.ENODEV))); !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "install") {
		t.Error(err)
	}
}

func TestKernelTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3 * time.Second
		for left, want := range map[time.Duration]int{
			-time.Hour:              1000,
			0:                       1000,
			500 * time.Millisecond:  1500,
			2500 * time.Millisecond: 3000,
			limit:                   3000,
			365 * 24 * time.Hour:    3000, // more milliseconds than an int32 has
			math.MaxInt64:           3000,
		} {
			ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(left))
			if got := kernelTimeout(ctx, limit); got != want {
				t.Errorf("%v left: %d ms, want %d", left, got, want)
			}
			cancel()
		}
		if got := kernelTimeout(t.Context(), limit); got != 3000 {
			t.Errorf("no deadline: %d ms", got)
		}
	})
}

// TestEventErrNoReason: an event that failed is an error even if it does not say why.
func TestEventErrNoReason(t *testing.T) {
	for _, typ := range []cm.EventType{cm.AddrError, cm.RouteError, cm.ConnectError, cm.Unreachable} {
		if err := eventErr(event{typ: typ}); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("%v: %v", typ, err)
		}
	}
}
