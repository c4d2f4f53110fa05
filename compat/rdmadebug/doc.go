// Package rdmadebug shows what RDMA does in a process: a page of its devices, listeners and connections for people, the same as text and
// JSON, and a variable for package expvar.
//
//	monitor := new(rconn.Monitor) // named in the Config of what is to be seen
//	http.Handle("/debug/rdma", &rdmadebug.Handler{Monitor: monitor})
//	expvar.Publish("rdma", expvar.Func(rdmadebug.Vars(monitor)))
//
// Listeners and connections are those of package rconn, and so those of package compat but for plain TCP. The page tells addresses and
// traffic of clients: it belongs where only operators can reach it, beside net/http/pprof.
//
// Importing the package does nothing: it registers no handler and no variable, and imports neither expvar nor pprof.
//
// # JSON
//
// The document has Time, Devices, Listeners, Conns and Totals. Each of the last four has Rows, of which there are at most Handler.Rows,
// Count, how many there are, and LeftOut, how many of them are not in Rows. Names within rows are those of rconn.ListenerStatus,
// rconn.ConnStatus and rconn.Total; transports and states are in words, a connection's Err is text.
//
// # Retries
//
// Retransmission is the affair of devices, which do not tell for which connection it was. What a device counts of it, Linux has in sysfs
// (hw_counters); the page shows those that have to do with lost or late packets and receivers that were not ready. The software device
// leaves it to TCP and counts nothing. Of a connection the page shows stalls, waits, and the probes of keepalive.
package rdmadebug
