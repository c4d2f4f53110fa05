package rdmaprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rconn/rdma/rconn"
)

// counts are the fields of rconn.Stats, by what their metric's name ends with.
var counts = []struct {
	name, help string
	of         func(*rconn.Stats) uint64
}{
	{"sent_bytes_total", "Bytes of the streams that were sent.", func(s *rconn.Stats) uint64 { return s.BytesSent }},
	{"received_bytes_total", "Bytes of the streams that were received.", func(s *rconn.Stats) uint64 { return s.BytesReceived }},
	{"sent_messages_total", "Messages sent that announce bytes.", func(s *rconn.Stats) uint64 { return s.DataSent }},
	{"received_messages_total", "Messages received that announce bytes.", func(s *rconn.Stats) uint64 { return s.DataReceived }},
	{"sent_grants_total", "Messages sent about space and credits.", func(s *rconn.Stats) uint64 { return s.GrantsSent }},
	{"received_grants_total", "Messages received about space and credits.", func(s *rconn.Stats) uint64 { return s.GrantsReceived }},
	{"sent_segments_total", "Pieces of receive rings given back to peers.", func(s *rconn.Stats) uint64 { return s.SegmentsSent }},
	{"read_calls_total", "Calls of Read that returned bytes.", func(s *rconn.Stats) uint64 { return s.Reads }},
	{"write_stalls_total", "Times a Write waited for credits, space at the peer, or the device.",
		func(s *rconn.Stats) uint64 { return s.WriteStalls }},
	{"completions_total", "Work completions taken.", func(s *rconn.Stats) uint64 { return s.Completions }},
	{"waits_total", "Times a call waited for completions: they were there, or it spun or slept.", func(s *rconn.Stats) uint64 { return s.Waits }},
	{"parks_total", "Times a call slept while it waited for completions.", func(s *rconn.Stats) uint64 { return s.Parks }},
	{"keepalive_probes_total", "Keepalive probes sent.", func(s *rconn.Stats) uint64 { return s.Probes }},
}

// group is the metrics that have the same labels, by the ends of their names.
type group struct {
	descs map[string]*prometheus.Desc
}

func newGroup(prefix, whose string, labels []string, others ...[2]string) group {
	g := group{map[string]*prometheus.Desc{}}
	for _, o := range others {
		g.descs[o[0]] = prometheus.NewDesc(prefix+o[0], o[1], labels, nil)
	}
	if whose != "" {
		for _, c := range counts {
			g.descs[c.name] = prometheus.NewDesc(prefix+c.name, c.help+" "+whose, labels, nil)
		}
	}
	return g
}

// groups are made when a Collector is first used.
type groups struct{ totals, open, states, listeners, conns group }

var all = sync.OnceValue(func() *groups {
	return &groups{
		totals: newGroup("rdma_", "All connections, closed ones too.", []string{"device", "transport", "side", "remote_host"},
			[2]string{"connections", "Connections that are open."},
			[2]string{"connections_opened_total", "Connections that were made."},
		),
		open: newGroup("rdma_", "", []string{"device", "transport", "side"},
			[2]string{"unread_bytes", "Bytes that arrived and wait for Read."},
			[2]string{"unsent_bytes", "Bytes of Writes that wait for credits, space at the peer, or the device."},
		),
		states: newGroup("rdma_", "", []string{"device", "transport", "side", "state"},
			[2]string{"connections_by_state", "Connections that are open, by how far they have come to their end."},
		),
		listeners: newGroup("rdma_listener_", "Connections that the listener made.", []string{"listener", "network"},
			[2]string{"accepted_total", "Connections that Accept has returned."},
			[2]string{"handshakes_failed_total", "Handshakes that made no connection."},
			[2]string{"handshakes", "Handshakes that are under way."},
			[2]string{"waiting_connections", "Connections that wait for Accept."},
			[2]string{"connections", "Connections that the listener made and that are open."},
		),
		conns: newGroup("rdma_connection_", "One open connection.", []string{"device", "side", "local", "remote"},
			[2]string{"credits", "Messages that may be sent now."},
			[2]string{"unread_bytes", "Bytes that arrived and wait for Read."},
			[2]string{"unsent_bytes", "Bytes of a Write that wait for credits, space at the peer, or the device."},
			[2]string{"opened_timestamp_seconds", "When the connection was made, in seconds since 1970."},
		),
	}
})
