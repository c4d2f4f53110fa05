// Package rconn is package net over RDMA: Dial, Listen, Dialer, ListenConfig, and a Conn and a Listener that are
// net.Conn and net.Listener. A program changes one line:
//
//	ln, err := rconn.Listen("tcp", ":8080")      // was net.Listen
//	http.Serve(ln, handler)
//
//	transport := &http.Transport{DialContext: (&rconn.Dialer{}).DialContext}
//
// The networks are "rdma", "rdma4" and "rdma6"; "tcp", "tcp4" and "tcp6" mean the same, because libraries pass them.
// Addresses are *net.TCPAddr. On the wire a Conn speaks the rsocket protocol of librdmacm, so that C programs on
// rsockets, or under librspreload, are peers.
//
// # Which device
//
// The address decides, as with the RDMA CM. Dial takes the RDMA device that leads to it, and where there is none, or it fails, the software
// device, which every process has; when RDMA is slow the software device starts beside it (Dialer.FallbackDelay) and the
// first connection is taken, the other reset. Listen serves both on one port number, except that an iWARP device of the kernel, whose
// ports are TCP's, serves its addresses alone; the software device is a peer of such devices. Loopback addresses are the software
// device's. Config.Device and the environment variable RCONN_DEVICE restrict the choice. Conn.Info tells what was taken, and the
// log names each device once.
//
// # Errors
//
// Errors are *net.OpError, as in package net. What they wrap:
//
//	io.EOF (bare)             the peer ended its direction in order, and all was read
//	net.ErrClosed             the Conn or Listener was closed here
//	os.ErrDeadlineExceeded    a deadline passed; Timeout() is true
//	syscall.ECONNREFUSED      the peer refused, or nobody listens
//	syscall.ECONNRESET        the connection broke; errors.As finds a *verbs.CompletionError where there is one
//	syscall.EPIPE             write after CloseWrite, or after the peer has disconnected
//	syscall.EHOSTUNREACH, ENETUNREACH, ETIMEDOUT   while dialing
//	syscall.EADDRINUSE, EADDRNOTAVAIL              while listening
//	syscall.ENOMEM            locked memory is limited (ulimit -l)
//	verbs.ErrNoDevice         the device asked for does not serve the address; also errors.ErrUnsupported
//	context's errors          the context of a dial ended first
//
// # Who is connected
//
// Conn.Info and Conn.Stats tell about one connection. A Monitor, named in Config.Monitor, knows all that are open, the listeners, and sums of
// what closed ones did; packages compat/rdmadebug and compat/rdmaprom show it to people, expvar and Prometheus.
//
// # What Write and Close promise
//
// Write returns when the bytes are with the device; of many small writes in a row some wait for those before them, see
// Conn.SetNoDelay. Close sends what was written and waits until the peer's device has it, at most for Config.Linger. A process that
// exits without Close loses what is under way, or waits.
package rconn
