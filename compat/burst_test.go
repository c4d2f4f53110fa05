package compat

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs/verbstest"
)

// A thousand dials at once, half of the software device and half of plain TCP, while the server is busy and does not accept: all connect,
// each as what it is, and are served when it does, as with package net.
//
// fault: CONN-10 (software)
func TestBurst(t *testing.T) {
	const dials = 1000
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	small := rconn.Config{SendBuffer: 4 << 10, RecvBuffer: 4 << 10, Credits: 8, SendQueue: 16, HandshakeTimeout: time.Minute, Logger: lc.RDMA.Config.Logger}
	lc.RDMA.Config = small
	ln := w.listen(t, lc)
	software := &rconn.Dialer{Providers: w.dialing[1:], Config: small}
	var wg sync.WaitGroup
	for i := range dials {
		dial := software.Dial
		if i%2 == 0 {
			dial = net.Dial
		}
		wg.Go(func() {
			c, err := dial("tcp", ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			sayHello(t, c)
		})
	}
	eventually(t, func() bool { return ln.hall.ready.Len() == maxReady })
	require.NoError(t, ln.SetDeadline(time.Now().Add(time.Minute)))
	count := map[string]int{}
	for range dials {
		c, err := ln.Accept()
		require.NoError(t, err)
		count[kind(c)]++
		wg.Go(func() {
			defer c.Close()
			if _, err := io.WriteString(c, "hello"); err != nil {
				t.Error(err)
			}
			io.Copy(io.Discard, c)
		})
	}
	wg.Wait()
	require.Equal(t, map[string]int{"tcp": dials / 2, "software": dials / 2}, count)
}

// sayHello says and hears it, in any goroutine.
func sayHello(t *testing.T, c net.Conn) {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Error(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// Peers that send the key of an MPA request and no more, or a part of one, do not hold up others for long: neither plain TCP nor the
// software device. The bound is far below the time after which they are thrown out.
//
// fault: CONN-3 (software)
func TestKeyFlood(t *testing.T) {
	for name, n := range map[string]int{"500": 500, "more than there are places": maxLooks + 200} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, verbstest.Config{})
			ln := w.listen(t, w.listenConfig())
			said := mpaKey + "\x40\x02\x00\x10private"
			var flood []*net.TCPConn
			for i := range n {
				c := dialTCP(t, ln.Addr())
				write(t, c, said[:len(mpaKey)+i%(len(said)-len(mpaKey)+1)])
				flood = append(flood, c)
			}
			start := time.Now()
			for want, dial := range map[string]func(network, address string) (net.Conn, error){
				"software": w.rconnDialer(1).Dial, "tcp": net.Dial,
			} {
				c, err := dial("tcp", ln.Addr().String())
				require.NoError(t, err)
				write(t, c, "hello")
				a := readHello(t, ln)
				require.Equal(t, want, kind(a))
				exchange(t, c, a)
			}
			t.Log(time.Since(start))
			require.Less(t, time.Since(start), 2*time.Second)
			for _, c := range flood {
				over(t, c)
			}
			require.Zero(t, ln.hall.ready.Len())
		})
	}
}

// A thousand dials at once, of a Dialer that falls back, while the server does not accept: those that hear nothing of the software device take
// plain TCP, and all are served. What was given up comes out of Accept as a connection without a byte, or not at all.
func TestBurstOfFallbacks(t *testing.T) {
	const dials = 1000
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	small := rconn.Config{
		SendBuffer: 4 << 10, RecvBuffer: 4 << 10, Credits: 8, SendQueue: 16, Device: "software", Logger: slog.New(slog.DiscardHandler),
	}
	lc.RDMA.Config = small
	ln := w.listen(t, lc)
	d := &Dialer{RDMA: rconn.Dialer{Providers: w.dialing, Config: small}}
	var mu sync.Mutex
	count := map[string]int{}
	var wg sync.WaitGroup
	dialed := make(chan struct{}, dials)
	for range dials {
		wg.Go(func() {
			c, err := d.Dial("tcp", ln.Addr().String())
			dialed <- struct{}{}
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			mu.Lock()
			count[kind(c)]++
			mu.Unlock()
			sayHello(t, c)
		})
	}
	for range dials {
		<-dialed
	}
	w.echo(t, ln)
	wg.Wait()
	require.Equal(t, dials, count["tcp"]+count["software"])
	t.Log(count)
}
