package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// TestWithoutDevices: on a host without RDMA every method says what is missing.
func TestWithoutDevices(t *testing.T) {
	p := Provider()
	if list, _ := os.ReadDir("/sys/class/infiniband"); len(list) > 0 {
		// Here the other half must hold: the devices are there, or the error says why they cannot be used.
		if devices, err := p.Devices(); len(devices) == 0 && !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%d devices in the kernel, none here: %v", len(list), err)
		}
		return
	}
	if p.Name() != "system" {
		t.Error(p.Name())
	}
	addr := netip.MustParseAddrPort("10.9.0.1:80")
	_, err1 := p.Devices()
	_, err2 := p.Resolve(context.Background(), netip.AddrPort{}, addr)
	_, err3 := p.Listen(addr, cm.ListenOptions{})
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, verbs.ErrNoDevice) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v is not ErrNoDevice", err)
			continue
		}
		t.Log(err)
		hint := false
		for _, h := range []string{"install", "modprobe", "rdma link add", "cgo", "Linux"} {
			hint = hint || strings.Contains(err.Error(), h)
		}
		if !hint {
			t.Errorf("%v does not say what to do", err)
		}
	}
	var e *cm.Error
	if !errors.As(err2, &e) || e.Op != "resolve address" || e.Addr != addr {
		t.Errorf("%v", err2)
	}
	if !errors.As(err3, &e) || e.Op != "listen" || e.Addr != addr {
		t.Errorf("%v", err3)
	}
}

func TestLoopbackRefused(t *testing.T) {
	p := Provider()
	for _, s := range []string{"127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"} {
		a := netip.MustParseAddrPort(s)
		if _, err := p.Resolve(context.Background(), netip.AddrPort{}, a); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("dial of %s: %v", s, err)
		}
		if _, err := p.Resolve(context.Background(), a, netip.MustParseAddrPort("10.9.0.1:80")); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("dial from %s: %v", s, err)
		}
		if _, err := p.Listen(a, cm.ListenOptions{}); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("listener on %s: %v", s, err)
		}
	}
}
