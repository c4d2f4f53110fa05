package softiwarp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// DeviceName is the software device's name.
const DeviceName = "software0"

const (
	gidTable   = 128
	maxMessage = 1 << 30 // bytes of one message
	maxInline  = 256
	maxDepth   = 128 // READs and atomics at once, as Linux's soft-iWARP
)

// device is the software device. It is there even without a network.
type device struct {
	cfg    Config
	attr   verbs.DeviceAttr
	mrs    stags
	lastQP atomic.Uint32
	open   counts

	rejects atomic.Int32 // connections that stay open for the peer to read the reject

	lastChannel atomic.Uint64 // the number of the one that was made last
	lastWaiter  atomic.Uint64 // and of the one whose waiter led last

	mu      sync.Mutex
	watches map[*mailbox[verbs.AsyncEvent]]struct{}
}

// counts are the objects that are open, for limits and tests.
type counts struct{ pds, mrs, channels, cqs, qps, srqs, ids, listeners, streams atomic.Int32 }

func newDevice(cfg Config) *device {
	d := &device{
		cfg:     cfg,
		mrs:     stags{m: make(map[uint32]*mr)},
		watches: make(map[*mailbox[verbs.AsyncEvent]]struct{}),
	}
	guid := rand.Uint64()&^(0xff<<56) | 0x02<<56 // locally administered
	d.attr = verbs.DeviceAttr{
		Transport: verbs.TransportIWARP,
		Caps: verbs.Capabilities{
			Send: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
				verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd),
			MaxInline: maxInline, FreesEarlier: true,
		},
		Firmware: "1", NodeGUID: guid, SysImageGUID: guid, Ports: 1,
		MaxQP: 1 << 20, MaxQPWR: 1 << 14, MaxSGE: maxSGE, MaxSGERead: 1, MaxCQ: 1 << 20, MaxCQE: 1 << 18, MaxMR: 1 << 22,
		MaxMRSize: min(1<<40, math.MaxInt/2), MaxPD: 1 << 20, MaxQPRdAtom: maxDepth, MaxQPInitRdAtom: maxDepth,
		MaxSRQ: 1 << 20, MaxSRQWR: 1 << 16, MaxSRQSGE: maxSGE,
		// Atomics are executed with the processor's own, see arriveAtomic.
		Atomic: verbs.AtomicGlob,
	}
	return d
}

func (d *device) Name() string { return DeviceName }

func (d *device) Attr() verbs.DeviceAttr { return d.attr }

// Port is always active: the loopback interface is.
func (d *device) Port(num int) (verbs.PortAttr, error) {
	if num != 1 {
		return verbs.PortAttr{}, misuse("there is no port %d", num)
	}
	return verbs.PortAttr{
		State: verbs.PortActive, Link: verbs.LinkEthernet, MTU: 4096, MaxMTU: 4096, GIDs: gidTable, MaxMsgSize: maxMessage,
	}, nil
}

// GID lists the host's addresses.
func (d *device) GID(port, index int) (verbs.GID, error) {
	if port != 1 || index < 0 || index >= gidTable {
		return verbs.GID{}, misuse("there is no entry %d in the GID table of port %d", index, port)
	}
	all, err := net.InterfaceAddrs()
	if err != nil || len(all) == 0 {
		all = []net.Addr{&net.IPNet{IP: net.IPv4(127, 0, 0, 1)}}
	}
	if index >= len(all) {
		return verbs.GID{}, nil
	}
	if n, ok := all[index].(*net.IPNet); ok {
		if a, ok := netip.AddrFromSlice(n.IP.To16()); ok {
			return a.As16(), nil
		}
	}
	return verbs.GID{}, nil
}

// GIDType is that of entries that no packets are sent by.
func (d *device) GIDType(port, index int) (verbs.GIDType, error) {
	_, err := d.GID(port, index)
	return verbs.GIDTypeIB, err
}

func (d *device) AllocPD() (verbs.PD, error) {
	if err := d.take(&d.open.pds, d.attr.MaxPD, "AllocPD"); err != nil {
		return nil, err
	}
	return &pd{dev: d}, nil
}

func (d *device) Watch(f func(verbs.AsyncEvent)) (stop func()) {
	box := new(mailbox[verbs.AsyncEvent])
	box.listen(f)
	d.mu.Lock()
	d.watches[box] = struct{}{}
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		delete(d.watches, box)
		d.mu.Unlock()
		box.close()
	}
}

func (d *device) async(e verbs.AsyncEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for box := range d.watches {
		box.put(e)
	}
}

// take counts one more of something, up to limit.
func (d *device) take(n *atomic.Int32, limit int, call string) error {
	if int(n.Add(1)) > limit {
		n.Add(-1)
		return os.NewSyscallError(call, syscall.ENOMEM)
	}
	return nil
}

func (d *device) count(n *atomic.Int32, change int32) { n.Add(change) }

// Leaks tells what is open.
func (d *device) leaks() error {
	for _, c := range []struct {
		what string
		n    *atomic.Int32
	}{
		{"PDs", &d.open.pds}, {"MRs", &d.open.mrs}, {"channels", &d.open.channels}, {"CQs", &d.open.cqs}, {"QPs", &d.open.qps},
		{"SRQs", &d.open.srqs}, {"IDs", &d.open.ids}, {"listeners", &d.open.listeners}, {"TCP connections", &d.open.streams},
	} {
		if n := c.n.Load(); n != 0 {
			return fmt.Errorf("%d %s are open", n, c.what)
		}
	}
	return nil
}

// misuse is an error about what the caller asked for.
func misuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{syscall.EINVAL}, args...)...)
}
