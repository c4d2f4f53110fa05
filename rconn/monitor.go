package rconn

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Monitor knows the open connections and listeners of the Dialers and ListenConfigs that name it in Config.Monitor, and keeps sums of what
// closed connections did. The zero value is usable; a nil *Monitor knows nothing. It may be used by several goroutines, and must not be copied
// after first use.
//
// A connection is known from when it is made until Close returns, also when it is broken and before Accept has returned it. Reading
// and writing cost nothing more, a Snapshot takes each connection's lock for a moment.
type Monitor struct {
	// Hosts is how many remote hosts have totals of their own: the first so many, the others share one with the name OtherHosts. Set
	// it before use. 0: none, totals are those of all hosts. Whoever can connect from many addresses can use the places up.
	Hosts int

	mu        sync.Mutex // never held together with a Conn's
	seq       uint64     // connections and listeners so far
	conns     map[*Conn]*monitoredConn
	listeners map[*Listener]*monitoredListener
	totals    map[totalKey]*tally
	hosts     map[string]bool // those with totals of their own
}

// OtherHosts is the Total.Host of remote hosts without totals of their own.
const OtherHosts = "other"

// tally counts connections that have something in common. What the open ones did is theirs to say.
type tally struct {
	opened uint64
	open   int
	closed Stats
}

type monitoredConn struct {
	seq      uint64
	since    time.Time
	listener netip.AddrPort
	tallies  []*tally // that of its total, and that of its listener
}

type monitoredListener struct {
	seq   uint64
	since time.Time
	tally tally
}

// addConn is for a connection that was just made; l has accepted it, or is nil.
func (m *Monitor) addConn(c *Conn, l *Listener) {
	if m == nil {
		return
	}
	now := time.Now()
	device := c.Device()
	key := totalKey{device: device.Name(), transport: device.Attr().Transport, accepted: l != nil}
	m.mu.Lock()
	defer m.mu.Unlock()
	key.host = m.host(c.raddr.AddrPort().Addr().String())
	total := m.totals[key]
	if total == nil {
		total = new(tally)
		put(&m.totals, key, total)
	}
	e := &monitoredConn{seq: m.next(), since: now, tallies: []*tally{total}}
	if l != nil {
		e.listener = l.addr.AddrPort()
	}
	if ml := m.listeners[l]; ml != nil {
		e.tallies = append(e.tallies, &ml.tally)
	}
	for _, t := range e.tallies {
		t.opened++
		t.open++
	}
	put(&m.conns, c, e)
}

// host is the name under which a host has its total.
func (m *Monitor) host(name string) string {
	switch {
	case m.Hosts <= 0:
		return ""
	case m.hosts[name]:
	case len(m.hosts) >= m.Hosts:
		return OtherHosts
	default:
		put(&m.hosts, name, true)
	}
	return name
}

// dropConn is for a connection that is closed.
func (m *Monitor) dropConn(c *Conn) {
	if m == nil {
		return
	}
	last := c.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.conns[c]
	if e == nil {
		return
	}
	delete(m.conns, c)
	for _, t := range e.tallies {
		t.open--
		t.closed.add(&last)
	}
}

func (m *Monitor) addListener(l *Listener) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	put(&m.listeners, l, &monitoredListener{seq: m.next(), since: time.Now()})
}

func (m *Monitor) dropListener(l *Listener) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.listeners, l)
}

func (m *Monitor) next() uint64 {
	m.seq++
	return m.seq
}

// put makes the map when it is first needed, so that the zero Monitor works.
func put[K comparable, V any](to *map[K]V, k K, v V) {
	if *to == nil {
		*to = make(map[K]V)
	}
	(*to)[k] = v
}

// Snapshot tells what is known now. Connections and listeners come oldest first, totals ordered by what they are of.
//
// Sums of one Snapshot are never less than those of an earlier one.
func (m *Monitor) Snapshot() Snapshot {
	if m == nil {
		return Snapshot{}
	}
	// Who is open and what the closed ones did is of the same moment: no connection counts twice or not at all.
	m.mu.Lock()
	conns := listed(m.conns, func(e *monitoredConn) uint64 { return e.seq })
	listeners := listed(m.listeners, func(e *monitoredListener) uint64 { return e.seq })
	sums := make(map[*tally]*tally, len(m.totals)+len(listeners)) // and then what the open ones did too
	totals := make(map[totalKey]*tally, len(m.totals))
	for k, t := range m.totals {
		sum := *t
		sums[t], totals[k] = &sum, &sum
	}
	for _, l := range listeners {
		sum := l.known.tally
		sums[&l.known.tally] = &sum
	}
	m.mu.Unlock()

	s := Snapshot{Time: time.Now(), Conns: make([]ConnStatus, len(conns)), Listeners: make([]ListenerStatus, len(listeners))}
	for i, c := range conns {
		st := &s.Conns[i]
		c.is.status(st)
		st.Since, st.Listener = c.known.since, c.known.listener
		for _, t := range c.known.tallies {
			if sum := sums[t]; sum != nil { // else its listener is closed
				sum.closed.add(&st.Stats)
			}
		}
	}
	for i, l := range listeners {
		st, sum := &s.Listeners[i], sums[&l.known.tally]
		l.is.status(st)
		st.Since, st.Opened, st.Open, st.Stats = l.known.since, sum.opened, sum.open, sum.closed
	}
	for k, sum := range totals {
		s.Totals = append(s.Totals, Total{
			Device: k.device, Transport: k.transport, Accepted: k.accepted, Host: k.host, Opened: sum.opened, Open: sum.open, Stats: sum.closed,
		})
	}
	slices.SortFunc(s.Totals, compareTotals)
	return s
}

// known is one of the keys of a map of Monitor's, with what is known of it.
type known[K comparable, E any] struct {
	is    K
	known E
}

func listed[K comparable, E any](from map[K]E, seq func(E) uint64) []known[K, E] {
	all := make([]known[K, E], 0, len(from))
	for k, e := range from {
		all = append(all, known[K, E]{k, e})
	}
	slices.SortFunc(all, func(a, b known[K, E]) int { return cmp.Compare(seq(a.known), seq(b.known)) })
	return all
}
