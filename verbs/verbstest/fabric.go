package verbstest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config describes a fabric. The zero value is a fabric of InfiniBand devices without delay.
type Config struct {
	// Latency is how long a packet travels. With a latency under testing/synctest a payload is taken out of the sender's
	// memory as late as can be: when every goroutine is blocked.
	Latency time.Duration

	// Jitter is added to the latency of each packet, random between 0 and this. Packets of one queue pair stay in order.
	Jitter time.Duration

	// Seed makes the jitter repeatable.
	Seed uint64

	// Device describes the devices that Host makes.
	Device DeviceConfig
}

// Fabric is a network of hosts with RDMA devices. Its methods may be called from several goroutines.
type Fabric struct {
	// mu guards everything that belongs to the fabric's objects. Methods of the verbs and cm interfaces take it,
	// lower-case methods and the clock's functions run with it held.
	mu sync.Mutex
	clock

	cfg        Config
	rand       *rand.Rand
	hosts      []*Host
	qps        map[uint32]*qp   // by number
	stuck      map[*stream]bool // iWARP streams with packets that wait for a path
	cuts       map[[2]*Host]bool
	violations []string
	nextAddr   uint64
	nextKey    uint32
	nextQPNum  uint32
	nextLID    uint16
	closed     bool
}

// NewFabric makes a network without hosts. Under testing/synctest make it inside the bubble. Close it at the end.
func NewFabric(cfg Config) *Fabric {
	f := &Fabric{
		cfg:   cfg,
		rand:  rand.New(rand.NewPCG(cfg.Seed, 0)),
		qps:   make(map[uint32]*qp),
		stuck: make(map[*stream]bool),
		cuts:  make(map[[2]*Host]bool),
		// Made-up addresses and keys that differ in the whole fabric, and differ from real ones, make every mix-up an error.
		nextAddr:  0x5100_0000_0000,
		nextKey:   0x1100,
		nextQPNum: 0x11,
		nextLID:   0xc0,
	}
	f.clock.init(&f.mu)
	return f
}

// Close kills every host and stops the fabric's timers.
func (f *Fabric) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, h := range f.hosts {
		h.die()
	}
	f.clock.stop()
}

// delay is the time that the next packet takes.
func (f *Fabric) delay() time.Duration {
	d := f.cfg.Latency
	if f.cfg.Jitter > 0 {
		d += time.Duration(f.rand.Int64N(int64(f.cfg.Jitter)))
	}
	return d
}

// device finds who answers for an address: a live process first, else the kernel of a killed one.
func (f *Fabric) device(a netip.Addr) *Device {
	var found *Device
	for _, h := range f.hosts {
		for _, d := range h.devices {
			if d.has(a) && !h.dark && (found == nil || !h.dead) {
				found = d
			}
		}
	}
	return found
}

// path reports whether packets get from one device to the other.
func (f *Fabric) path(from, to *Device) bool {
	return from.reachable() && to.reachable() && !f.cuts[pair(from.host, to.host)]
}

func pair(a, b *Host) [2]*Host {
	if a.serial > b.serial {
		a, b = b, a
	}
	return [2]*Host{a, b}
}

// pathsChanged lets go on what had waited for a path.
func (f *Fabric) pathsChanged() {
	for _, q := range f.sortedQPs() {
		q.pathChanged()
	}
	for s := range f.stuck {
		s.deliver() // its QP may be gone
	}
}

// sortedQPs lists the queue pairs in the order in which they were made.
func (f *Fabric) sortedQPs() []*qp {
	return slices.SortedFunc(maps.Values(f.qps), func(a, b *qp) int { return int(a.num) - int(b.num) })
}

// Objects counts what is open.
type Objects struct {
	PDs, MRs, Channels, CQs, SRQs, QPs, AHs, IDs, Listeners, Watches int
}

func (o Objects) add(p Objects) Objects {
	return Objects{
		o.PDs + p.PDs, o.MRs + p.MRs, o.Channels + p.Channels, o.CQs + p.CQs, o.SRQs + p.SRQs,
		o.QPs + p.QPs, o.AHs + p.AHs, o.IDs + p.IDs, o.Listeners + p.Listeners, o.Watches + p.Watches,
	}
}

// Objects counts what is open on all hosts. What belonged to a killed process is gone.
func (f *Fabric) Objects() Objects {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sum Objects
	for _, h := range f.hosts {
		sum = sum.add(h.objects)
	}
	return sum
}

// Violations tells which rules of verbs and cm were broken by the fabric's users: objects closed in the wrong order, memory freed
// while a device could still use it, two goroutines in Wait.
func (f *Fabric) Violations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.violations)
}

func (f *Fabric) violate(format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}
