package verbstest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

// DeviceConfig describes a device. The zero value is an InfiniBand device with usual limits.
type DeviceConfig struct {
	Name      string          // default "fab" and a number
	Transport verbs.Transport // default verbs.TransportIB
	Addrs     []string        // see Fabric.Host
	Netdev    string          // the zone of its link-local addresses; default "net" and a number

	// RoCE has an InfiniBand device on Ethernet, where an address handle needs a GID. Else its port has a LID.
	RoCE bool

	// Attr, if set, changes attributes, limits for instance, before the device is used.
	Attr func(*verbs.DeviceAttr)

	// LoseInError has requests posted in the error state never complete, as Linux's software devices do, instead of
	// being flushed.
	LoseInError bool

	// Memlock limits the bytes that the host registers, as RLIMIT_MEMLOCK does. 0: no limit.
	Memlock uint64

	// SendBuffer is how many bytes on their way an iWARP device takes over from its user, as TCP's send buffer
	// does. Default 256 KiB.
	SendBuffer int

	// TCPTimeout is how long an iWARP connection lives without an answer from the peer. Default 15 minutes.
	TCPTimeout time.Duration
}

// Device is a device of the fabric. It implements verbs.Device, and faults besides.
type Device struct {
	fab      *Fabric
	host     *Host
	cfg      DeviceConfig
	attr     verbs.DeviceAttr
	prefixes []netip.Prefix
	gids     []verbs.GID // of prefixes
	lid      uint16

	mrs      map[uint32]*mr  // by key
	freed    map[uint32]bool // keys of closed MRs
	channels map[*channel]bool
	watches  map[*mailbox[verbs.AsyncEvent]]bool
	srqs     map[*srq]bool
	pds      int
	cqs      int
	qps      int
	ahs      int

	linkDown bool
	removed  bool
	paused   bool

	sendDelay, recvDelay, eventDelay time.Duration
}

var _ verbs.Device = (*Device)(nil)

const (
	pathMTU    = 4096
	maxMessage = 1 << 30
	gidTable   = 16
)

func newDevice(h *Host, c DeviceConfig) *Device {
	h.plugged++
	if c.Name == "" {
		c.Name = fmt.Sprintf("fab%d", h.plugged-1)
	}
	if c.Netdev == "" {
		c.Netdev = fmt.Sprintf("net%d", h.plugged-1)
	}
	if c.Transport == verbs.TransportUnknown {
		c.Transport = verbs.TransportIB
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = 256 << 10
	}
	if c.TCPTimeout == 0 {
		c.TCPTimeout = 15 * time.Minute
	}
	d := &Device{
		fab: h.fab, host: h, cfg: c,
		mrs:      make(map[uint32]*mr),
		freed:    make(map[uint32]bool),
		channels: make(map[*channel]bool),
		srqs:     make(map[*srq]bool),
		watches:  make(map[*mailbox[verbs.AsyncEvent]]bool),
	}
	for _, a := range c.Addrs {
		p := mustPrefix(a)
		d.prefixes = append(d.prefixes, p)
		d.gids = append(d.gids, p.Addr().As16())
	}
	guid := uint64(0x0200_0000_0000_0000) | uint64(h.serial)<<8 | uint64(h.plugged)
	d.attr = verbs.DeviceAttr{
		Transport: c.Transport,
		Caps: verbs.Capabilities{
			Send: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
				verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd),
			QPTypes:    verbs.QPTypes(verbs.RC, verbs.UC, verbs.UD),
			MaxInline:  256,
			RNR:        true,
			WriteAcked: true, LocksMemory: true, FreesEarlier: true,
		},
		Firmware: "1.0", NodeGUID: guid, SysImageGUID: guid, VendorID: 0xfab, VendorPartID: 1, HWVersion: 1, Ports: 1,
		MaxQP: 1 << 16, MaxQPWR: 1 << 14, MaxSGE: 16, MaxSGERead: 16, MaxCQ: 1 << 16, MaxCQE: 1 << 16,
		MaxMR: 1 << 16, MaxMRSize: 1 << 32, MaxPD: 1 << 16, MaxQPRdAtom: 16, MaxQPInitRdAtom: 16,
		MaxSRQ: 1 << 12, MaxSRQWR: 1 << 14, MaxSRQSGE: 16, MaxAH: 1 << 16, Atomic: verbs.AtomicHCA,
	}
	if c.Transport == verbs.TransportIWARP {
		d.attr.Caps.Send = verbs.Opcodes(verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead)
		d.attr.Caps.QPTypes = 0
		d.attr.Caps.RNR = false
		d.attr.Caps.WriteAcked = false
		d.attr.MaxSGERead = 1
		d.attr.MaxAH = 0
	}
	if c.Attr != nil {
		c.Attr(&d.attr)
	}
	if !d.attr.Caps.Send.Has(verbs.OpAtomicFetchAndAdd) {
		d.attr.Atomic = verbs.AtomicNone
	}
	if d.linkLayer() == verbs.LinkInfiniBand {
		h.fab.nextLID++
		d.lid = h.fab.nextLID
	}
	return d
}

func mustPrefix(s string) netip.Prefix {
	if strings.Contains(s, "/") {
		return netip.MustParsePrefix(s)
	}
	a := netip.MustParseAddr(s)
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits)
}

func (d *Device) iwarp() bool { return d.attr.Transport == verbs.TransportIWARP }

// linkLayer is what the port is cabled with.
func (d *Device) linkLayer() verbs.LinkLayer {
	if d.iwarp() || d.cfg.RoCE {
		return verbs.LinkEthernet
	}
	return verbs.LinkInfiniBand
}

// reachable reports whether packets leave and reach the device.
func (d *Device) reachable() bool { return !d.linkDown && !d.removed && !d.host.dark }

// has reports whether an address, with its zone if it has one, is the device's own.
func (d *Device) has(a netip.Addr) bool {
	if a.Zone() != "" && a.Zone() != d.cfg.Netdev {
		return false
	}
	for _, p := range d.prefixes {
		if p.Addr() == a.WithZone("") {
			return true
		}
	}
	return false
}

// serves reports whether an address is in one of the device's networks.
func (d *Device) serves(a netip.Addr) bool {
	if a.Zone() != "" && a.Zone() != d.cfg.Netdev {
		return false
	}
	for _, p := range d.prefixes {
		if p.Contains(a.WithZone("")) {
			return true
		}
	}
	return false
}

// address is the device's own address towards remote: local, if that says one.
func (d *Device) address(remote, local netip.Addr) netip.Addr {
	if local.IsValid() && !local.IsUnspecified() {
		return d.zone(local)
	}
	for _, p := range d.prefixes {
		if p.Contains(remote.WithZone("")) {
			return d.zone(p.Addr())
		}
	}
	return netip.Addr{}
}

// zone adds the device's network interface to a link-local IPv6 address and takes another device's off.
func (d *Device) zone(a netip.Addr) netip.Addr {
	a = a.WithZone("")
	if a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(d.cfg.Netdev)
	}
	return a
}

func (d *Device) zoned(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(d.zone(a.Addr()), a.Port())
}

// check says why the device does not work any more.
func (d *Device) check() error {
	if d.removed || d.host.dead {
		return verbs.ErrDeviceRemoved
	}
	return nil
}

// call is what every call that a fault can hit begins with: it returns with the fabric's lock held, unless it fails.
func (d *Device) call(op Op) error {
	if err := d.host.before(op); err != nil {
		return err
	}
	d.fab.mu.Lock()
	if err := d.check(); err != nil {
		d.fab.mu.Unlock()
		return err
	}
	return nil
}

// Name implements verbs.Device.
func (d *Device) Name() string { return d.cfg.Name }

// Attr implements verbs.Device.
func (d *Device) Attr() verbs.DeviceAttr { return d.attr }

// Port implements verbs.Device.
func (d *Device) Port(num int) (verbs.PortAttr, error) {
	if err := d.call(QueryPort); err != nil {
		return verbs.PortAttr{}, err
	}
	defer d.fab.mu.Unlock()
	if num < 1 || num > d.attr.Ports {
		return verbs.PortAttr{}, os.NewSyscallError("ibv_query_port", syscall.EINVAL)
	}
	p := verbs.PortAttr{
		State: verbs.PortActive, Link: d.linkLayer(), MTU: pathMTU, MaxMTU: pathMTU, LID: d.lid,
		GIDs: gidTable, MaxMsgSize: maxMessage, Netdev: d.cfg.Netdev,
	}
	if d.linkDown {
		p.State = verbs.PortDown
	}
	return p, nil
}

// GID implements verbs.Device.
func (d *Device) GID(port, index int) (verbs.GID, error) {
	if err := d.call(QueryGID); err != nil {
		return verbs.GID{}, err
	}
	defer d.fab.mu.Unlock()
	if port < 1 || port > d.attr.Ports || index < 0 || index >= gidTable {
		return verbs.GID{}, os.NewSyscallError("ibv_query_gid", syscall.EINVAL)
	}
	if index >= len(d.gids) {
		return verbs.GID{}, nil
	}
	return d.gids[index], nil
}

// GIDType implements verbs.Device.
func (d *Device) GIDType(port, index int) (verbs.GIDType, error) {
	_, err := d.GID(port, index)
	if err == nil && d.cfg.RoCE {
		return verbs.GIDTypeRoCEv2, nil
	}
	return verbs.GIDTypeIB, err
}

// Watch implements verbs.Device.
func (d *Device) Watch(f func(verbs.AsyncEvent)) (stop func()) {
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	box := new(mailbox[verbs.AsyncEvent])
	box.listen(f)
	d.watches[box] = true
	d.host.count(&d.host.objects.Watches, 1)
	return func() {
		d.fab.mu.Lock()
		defer d.fab.mu.Unlock()
		if d.watches[box] {
			delete(d.watches, box)
			box.close()
			d.host.count(&d.host.objects.Watches, -1)
		}
	}
}

func (d *Device) async(e verbs.AsyncEvent) {
	for box := range d.watches {
		box.put(e)
	}
}

// remove takes the device away from under its objects.
func (d *Device) remove() {
	if d.removed {
		return
	}
	for _, id := range d.host.sortedIDs() {
		if id.dev == d {
			id.deviceRemoved()
		}
	}
	d.removed = true
	for _, q := range d.fab.sortedQPs() {
		if q.dev == d {
			q.toError()
		}
	}
	for _, l := range d.host.listeners {
		if d.has(l.addr.Addr()) {
			l.end(verbs.ErrDeviceRemoved)
		}
	}
	d.async(verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
	for c := range d.channels {
		c.signal()
	}
}

// die is the end of the process: nothing completes any more, and waits end.
func (d *Device) die() {
	for _, q := range d.fab.sortedQPs() {
		if q.dev == d {
			q.destroy()
		}
	}
	for _, m := range d.mrs {
		m.unpin()
	}
	for box := range d.watches {
		box.close()
	}
	for c := range d.channels {
		c.signal()
	}
}
