// Package compat puts other people's servers and clients on RDMA, with or without RDMA on the other side. It reads like package net: Listen,
// Dial, ListenConfig, Dialer.
//
//	ln, err := compat.Listen("tcp", ":8080") // was net.Listen
//	http.Serve(ln, handler)
//
//	client := &http.Client{Transport: compat.Transport(nil)}
//
// # Listening
//
// One port serves RDMA peers on the system's devices, peers of the software device and iWARP devices, and plain TCP clients. The first two
// come out of Accept as *rconn.Conn, the last as the *net.TCPConn that it is.
//
// A peer of the software device says so with its first bytes: an MPA request begins with the key "MPA ID Req Frame" (RFC 5044, section
// 7.1.1), and whoever connects sends it at once. Everything else is plain TCP: a client as soon as a byte differs from the key, and a client that
// says nothing after ListenConfig.Silence, 200 ms. So servers that speak first (SSH, SMTP, MySQL) work too, with that delay for
// each plain connection. Where no software device takes part nothing is looked at, and there is no delay. For the rest of a request that
// has begun there are 2 s; then a part of the key is plain TCP's, and what has the whole key is reset.
//
// Hundreds of clients that say nothing, or half a request, do not hold up the others: as many as 1024 are waited for at once, those that
// come when these get many are waited for less long, and the next ones wait in TCP's backlog.
//
// An iWARP device of the kernel has the TCP ports of its addresses, so on these it serves RDMA alone; the log says so.
//
// # Dialing
//
// Dialer tries RDMA, then the software device, then plain TCP. The next way starts when the one before has failed, or beside it when that takes
// longer than 250 ms; the first connection is taken, and the others are closed. One log line says what was taken and, in a word each, how the
// better ways went; at slog.LevelDebug it has their errors too.
//
// What a server of another protocol sees of this: one connection for the attempt of the software device (and one for that of an
// iWARP device of the kernel, where the dialing host has one), with an MPA request of at most 80 bytes. It is closed when the
// answer is not MPA's, when there is none in 250 ms, or when the server closes it. A compat.Listener may see a connection that
// ends without a byte, when another way was faster. A Dialer remembers which ways did not lead to an address and dials it without
// them: for a minute (Dialer.Memory) after a definite answer, for 5 s and twice as long each time in a row where there was none. So the
// price is paid that often and not for each connection. For servers on which
// stray bytes do harm (a printer, a log that takes lines) there is TCPOnly. For servers of package rconn, which take no plain
// TCP, there is Require: plain TCP connects to their port too, and leads nowhere.
//
// # Errors
//
// As in package net: errors are *net.OpError, and what package rconn says about what they wrap holds here too. When all ways of a
// dial fail the error is that of plain TCP, and its text has the others.
package compat
