package compat

import (
	"io"
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
			if _, err := io.WriteString(c, "hello"); err != nil {
				t.Error(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
				t.Errorf("%q, %v", got, err)
			}
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
