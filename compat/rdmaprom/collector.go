package rdmaprom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rconn/rdma/rconn"
)

// Collector collects what a Monitor knows. It is a prometheus.Collector; its fields are not to be changed once it is registered.
type Collector struct {
	// Monitor knows the listeners and connections. Nil: there is nothing to collect.
	Monitor *rconn.Monitor

	// Conns is how many of the open connections have series of their own, oldest first. 0: none.
	Conns int
}

var _ prometheus.Collector = (*Collector)(nil)

// Describe sends the descriptions of all metrics that Collect may send.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	g := all()
	described := []group{g.totals, g.open, g.states, g.listeners}
	if c.Conns > 0 {
		described = append(described, g.conns)
	}
	for _, g := range described {
		for _, d := range g.descs {
			ch <- d
		}
	}
}

// Collect sends the values of this moment.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.Monitor.Snapshot()
	g := all()
	v := make(values)
	for i := range s.Totals {
		t := &s.Totals[i]
		labels := labelsOf(t.Device, t.Transport.String(), side(t.Accepted), t.Host)
		v.add(g.totals, "connections", float64(t.Open), labels)
		v.add(g.totals, "connections_opened_total", float64(t.Opened), labels)
		v.counts(g.totals, &t.Stats, labels)
	}
	for i := range s.Listeners {
		l := &s.Listeners[i]
		labels := labelsOf(l.Addr.String(), l.Network)
		v.add(g.listeners, "accepted_total", float64(l.Accepted), labels)
		v.add(g.listeners, "handshakes_failed_total", float64(l.Failed), labels)
		v.add(g.listeners, "handshakes", float64(l.Handshakes), labels)
		v.add(g.listeners, "waiting_connections", float64(l.Waiting), labels)
		v.add(g.listeners, "connections", float64(l.Open), labels)
		v.counts(g.listeners, &l.Stats, labels)
	}
	for i := range s.Conns {
		conn := &s.Conns[i]
		device, transport, side := conn.Device, conn.Transport.String(), side(conn.Listener.IsValid())
		labels := labelsOf(device, transport, side)
		v.add(g.open, "unread_bytes", float64(conn.Unread), labels)
		v.add(g.open, "unsent_bytes", float64(conn.Unsent), labels)
		v.add(g.states, "connections_by_state", 1, labelsOf(device, transport, side, conn.State.String()))
		if i >= c.Conns {
			continue
		}
		labels = labelsOf(device, side, conn.Local.String(), conn.Remote.String())
		v.add(g.conns, "credits", float64(conn.CreditsLeft), labels)
		v.add(g.conns, "unread_bytes", float64(conn.Unread), labels)
		v.add(g.conns, "unsent_bytes", float64(conn.Unsent), labels)
		v.set(g.conns, "opened_timestamp_seconds", float64(conn.Since.UnixMilli())/1000, labels)
		v.counts(g.conns, &conn.Stats, labels)
	}
	v.send(ch)
}

func side(accepted bool) string {
	if accepted {
		return "accepted"
	}
	return "dialed"
}

// values are summed up by metric and labels. Two listeners can have the same address, one at RDMA and one at TCP; to Prometheus two values of one series
// are an error that ends the scrape.
type values map[series]float64

type series struct {
	desc    *prometheus.Desc
	counter bool
	labels  string // joined
}

// separator is in no label: it is no UTF-8.
const separator = "\xff"

// labelsOf makes the labels of a series. Names of devices may be any bytes, labels may not.
func labelsOf(values ...string) string {
	for i, v := range values {
		values[i] = strings.ToValidUTF8(v, "\ufffd")
	}
	return strings.Join(values, separator)
}

func seriesOf(g group, name, labels string) series {
	return series{g.descs[name], strings.HasSuffix(name, "_total"), labels}
}

func (v values) add(g group, name string, n float64, labels string) {
	v[seriesOf(g, name, labels)] += n
}

func (v values) set(g group, name string, n float64, labels string) { v[seriesOf(g, name, labels)] = n }

func (v values) counts(g group, s *rconn.Stats, labels string) {
	for _, c := range counts {
		v.add(g, c.name, float64(c.of(s)), labels)
	}
}

func (v values) send(ch chan<- prometheus.Metric) {
	for s, n := range v {
		kind := prometheus.GaugeValue
		if s.counter {
			kind = prometheus.CounterValue
		}
		m, err := prometheus.NewConstMetric(s.desc, kind, n, strings.Split(s.labels, separator)...)
		if err != nil {
			m = prometheus.NewInvalidMetric(s.desc, err)
		}
		ch <- m
	}
}
