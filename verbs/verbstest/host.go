package verbstest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Host is a process on a machine of the fabric: a cm.Provider with its devices.
type Host struct {
	fab     *Fabric
	name    string
	serial  int
	devices []*Device // those present
	plugged int       // devices ever
	ids     map[*id]bool
	lastID  int

	listeners []*listener
	nextPort  uint16
	objects   Objects
	locked    uint64 // bytes of memory regions
	dead      bool   // the process is gone
	dark      bool   // the machine is gone too

	faults faults
}

var _ cm.Provider = (*Host)(nil)

// firstPort is the first port that hosts pick. Tests that have TCP listeners at the same numbers may run in several processes at once, which must
// not meet: each has numbers of its own.
var firstPort = uint16(40000 + os.Getpid()*37%20000)

// Host adds a host to the fabric, with one device that has the addresses, such as "10.0.0.1" (of a /24), "fd00::1" (of a
// /64) or "10.0.0.1/8". Without addresses it has no device yet.
func (f *Fabric) Host(name string, addrs ...string) *Host {
	f.mu.Lock()
	h := &Host{fab: f, name: name, serial: len(f.hosts), ids: make(map[*id]bool), nextPort: firstPort}
	f.hosts = append(f.hosts, h)
	f.mu.Unlock()
	if len(addrs) > 0 {
		c := f.cfg.Device
		c.Addrs = addrs
		h.AddDevice(c)
	}
	return h
}

// AddDevice plugs in a device. It panics on addresses that are none.
func (h *Host) AddDevice(c DeviceConfig) *Device {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	d := newDevice(h, c)
	h.devices = append(h.devices, d)
	h.fab.pathsChanged()
	return d
}

// RemoveDevice unplugs a device: its connections get DEVICE_REMOVAL, its queue pairs flush, and all calls fail with
// verbs.ErrDeviceRemoved but Close.
func (h *Host) RemoveDevice(d *Device) {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	d.remove()
	h.devices = slices.DeleteFunc(h.devices, func(e *Device) bool { return e == d })
}

// Device returns the i-th of the devices present.
func (h *Host) Device(i int) *Device {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	return h.devices[i]
}

// Objects counts what is open on this host.
func (h *Host) Objects() Objects {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	return h.objects
}

// Name implements cm.Provider.
func (h *Host) Name() string { return "fabric" }

// Devices implements cm.Provider.
func (h *Host) Devices() ([]verbs.Device, error) {
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	if len(h.devices) == 0 || h.dead {
		return nil, fmt.Errorf("host %s of the fabric: %w", h.name, verbs.ErrNoDevice)
	}
	list := make([]verbs.Device, len(h.devices))
	for i, d := range h.devices {
		list[i] = d
	}
	return list, nil
}

// arpTimeout is how long an address that nobody has is looked for.
const arpTimeout = time.Second

// Resolve implements cm.Provider.
func (h *Host) Resolve(ctx context.Context, local, remote netip.AddrPort) (cm.Resolved, error) {
	fail := func(err error) (cm.Resolved, error) {
		return nil, &cm.Error{Op: "resolve address", Addr: remote, Err: err}
	}
	if err := h.before(Resolve); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	h.fab.mu.Lock()
	dev, err := h.route(local.Addr(), remote.Addr())
	if err != nil {
		h.fab.mu.Unlock()
		return fail(err)
	}
	own := dev.address(remote.Addr(), local.Addr())
	port, err := h.bind(own, local.Port())
	if err != nil {
		h.fab.mu.Unlock()
		return nil, &cm.Error{Op: "bind", Addr: local, Err: err}
	}
	id := newID(dev, netip.AddrPortFrom(own, port), dev.zoned(remote))
	result := make(chan answer, 1)
	id.answer = result
	id.lookUp()
	h.fab.mu.Unlock()

	select {
	case a := <-result:
		err = a.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		id.Close()
		return fail(err)
	}
	return id, nil
}

// route finds the device for a connection.
func (h *Host) route(local, remote netip.Addr) (*Device, error) {
	switch {
	case h.dead:
		return nil, verbs.ErrDeviceRemoved
	case !remote.IsValid():
		return nil, os.NewSyscallError("rdma_resolve_addr", syscall.EINVAL)
	case remote.IsLoopback() || remote.IsUnspecified() || local.IsLoopback():
		return nil, fmt.Errorf("loopback addresses are not on the fabric: %w", verbs.ErrNoDevice)
	case len(h.devices) == 0:
		return nil, fmt.Errorf("host %s of the fabric: %w", h.name, verbs.ErrNoDevice)
	case remote.IsLinkLocalUnicast() && remote.Is6() && remote.Zone() == "" && local.Zone() == "":
		return nil, os.NewSyscallError("rdma_resolve_addr", syscall.EINVAL)
	}
	bound := local.IsValid() && !local.IsUnspecified()
	known := false
	for _, d := range h.devices {
		if bound && !d.has(local) {
			continue
		}
		known = true
		if d.serves(remote) {
			return d, nil
		}
	}
	if bound && !known {
		return nil, syscall.EADDRNOTAVAIL
	}
	return nil, syscall.ENETUNREACH
}

// bind checks a local port, or picks one for 0.
func (h *Host) bind(a netip.Addr, port uint16) (uint16, error) {
	if port != 0 {
		if h.portTaken(a, port) {
			return 0, syscall.EADDRINUSE
		}
		return port, nil
	}
	for range 1 << 16 {
		port = h.nextPort
		if h.nextPort++; h.nextPort == 0 {
			h.nextPort = firstPort
		}
		if !h.portTaken(a, port) {
			return port, nil
		}
	}
	return 0, syscall.EADDRINUSE
}

func (h *Host) portTaken(a netip.Addr, port uint16) bool {
	for _, l := range h.listeners {
		if l.addr.Port() == port && overlap(l.addr.Addr(), a) {
			return true
		}
	}
	for id := range h.ids {
		// Accepted connections share their listener's port.
		if !id.passive && id.local.Port() == port && overlap(id.local.Addr(), a) {
			return true
		}
	}
	return false
}

func overlap(a, b netip.Addr) bool {
	return a.Is4() == b.Is4() && (a == b || a.IsUnspecified() || b.IsUnspecified())
}

// sortedIDs lists the connections in the order in which they were made.
func (h *Host) sortedIDs() []*id {
	return slices.SortedFunc(maps.Keys(h.ids), func(a, b *id) int { return a.serial - b.serial })
}

// die ends the process. What it had open is freed by the kernel.
func (h *Host) die() {
	if h.dead {
		return
	}
	h.dead = true
	for _, id := range h.sortedIDs() {
		id.die()
	}
	for _, l := range slices.Clone(h.listeners) {
		l.close()
	}
	for _, d := range h.devices {
		d.die()
	}
	h.objects = Objects{}
}

// count changes a number of open objects; those of a dead process are not counted any more.
func (h *Host) count(n *int, change int) {
	if !h.dead {
		*n += change
	}
}
