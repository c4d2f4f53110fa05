// Package rdmaprom gives Prometheus what RDMA does in a process. It is a module of its own, since it needs Prometheus' client library.
//
//	monitor := new(rconn.Monitor) // named in the Config of what is to be seen
//	prometheus.MustRegister(&rdmaprom.Collector{Monitor: monitor})
//	http.Handle("/metrics", promhttp.Handler())
//
// # Metrics
//
// All connections, with the labels device, transport, side (accepted or dialed) and remote_host (empty unless Monitor.Hosts is set). These
// series stay as long as the process, and never go back:
//
//	rdma_connections               gauge    open now
//	rdma_connections_opened_total  counter  made so far
//	rdma_sent_bytes_total, ...     counter  each of the counts below
//
// Those open now, with device, transport and side:
//
//	rdma_connections_by_state      gauge    with the label state, see rconn.State: "broken" are those that nobody has closed
//	rdma_unread_bytes              gauge    arrived and not read by the program
//	rdma_unsent_bytes              gauge    of a Write that waits
//
// Each open listener, with its address as the label listener, and network. They end with the listener:
//
//	rdma_listener_accepted_total           counter  connections that Accept has returned
//	rdma_listener_handshakes_failed_total  counter  handshakes that made no connection
//	rdma_listener_handshakes               gauge    under way
//	rdma_listener_waiting_connections      gauge    that wait for Accept
//	rdma_listener_connections              gauge    open now, of those made by it
//	rdma_listener_sent_bytes_total, ...    counter  each of the counts below, of the connections made by it
//
// Each open connection, only if Collector.Conns is set, with device, side, local and remote:
//
//	rdma_connection_credits                   gauge    messages that may be sent now
//	rdma_connection_unread_bytes              gauge
//	rdma_connection_unsent_bytes              gauge
//	rdma_connection_opened_timestamp_seconds  gauge    when it was made, in seconds since 1970
//	rdma_connection_sent_bytes_total, ...     counter  each of the counts below
//
// The counts are those of rconn.Stats:
//
//	sent_bytes_total, received_bytes_total        bytes of the stream
//	sent_messages_total, received_messages_total  messages that announce bytes
//	sent_grants_total, received_grants_total      messages about space and credits
//	sent_segments_total                           pieces of the receive ring given back to the peer
//	read_calls_total                              calls of Read that returned bytes
//	write_stalls_total                            times a Write waited for credits, space at the peer, or the device
//	completions_total                             work completions taken
//	waits_total, parks_total                      times a call waited for completions, and times it slept for that
//	keepalive_probes_total                        keepalive probes sent
//
// # Cardinality
//
// By default there are as many series as devices and listeners. Monitor.Hosts multiplies the first group by so many and one more.
// Collector.Conns adds series for so many connections at a time; each new connection has a port of its own and so makes new ones, which
// suits few and long connections only.
//
// Counters of devices, among them retransmissions, are the node exporter's (its infiniband collector).
package rdmaprom
