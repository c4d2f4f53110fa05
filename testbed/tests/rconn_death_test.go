//go:build guest

package tests

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/rconn"
)

// Peers that die and cables that are pulled.

// An ending is how a call of a connection that breaks has ended.
type ending struct {
	what string
	err  error
	at   time.Time
}

// The calls that a broken connection must end. What each needs of its peer, the peer learns by the connection's first byte.
var calls = []struct {
	what string
	peer byte // 'r' reads, 'w' writes, other peers do nothing
	call func(net.Conn) error
}{
	{"reader, nothing comes", '-', func(c net.Conn) error {
		_, err := c.Read(make([]byte, 1))
		return err
	}},
	{"reader, much comes", 'w', func(c net.Conn) error {
		_, err := io.Copy(io.Discard, c)
		return err
	}},
	{"writer, held up", '-', func(c net.Conn) error {
		_, err := c.Write(make([]byte, 64<<20))
		return err
	}},
	{"writer", 'r', func(c net.Conn) error {
		for {
			if _, err := c.Write(make([]byte, 4096)); err != nil {
				return err
			}
		}
	}},
}

// partner does what the other end asks for.
func partner(c net.Conn) {
	job := make([]byte, 1)
	if _, err := io.ReadFull(c, job); err != nil {
		return
	}
	switch job[0] {
	case 'r':
		io.Copy(io.Discard, c)
	case 'w':
		for {
			if _, err := c.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
}

// engage starts all calls, each on a connection of its own.
func engage(t *testing.T, next func() (net.Conn, error)) <-chan ending {
	t.Helper()
	endings := make(chan ending, len(calls))
	for _, k := range calls {
		c, err := next()
		if err != nil {
			t.Fatal(err)
		}
		c.(*rconn.Conn).SetLinger(0)
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte{k.peer}); err != nil {
			t.Fatal(err)
		}
		go func() {
			err := k.call(c)
			endings <- ending{k.what, err, time.Now()}
		}()
	}
	return endings
}

// allEnd wants all calls to have ended with one of the errors, at most limit after begin.
func allEnd(t *testing.T, endings <-chan ending, begin time.Time, limit time.Duration, want ...error) {
	t.Helper()
	for range calls {
		select {
		case e := <-endings:
			took := e.at.Sub(begin)
			t.Logf("seen: %s: %v after %v", e.what, e.err, took.Round(time.Millisecond))
			if !isOne(e.err, want) || took > limit {
				t.Errorf("want one of %v within %v", want, limit)
			}
		case <-time.After(patience):
			t.Fatal("a call hangs")
		}
	}
}

func isOne(err error, of []error) bool {
	for _, w := range of {
		if errors.Is(err, w) {
			return true
		}
	}
	return false
}

// killLimit is 2 s, and one for a slow guest.
const killLimit = 3 * time.Second

// kill -9 of the dialing process, with work in flight.
//
// fault: DEATH-1
func TestBothStreamDialerKilled(t *testing.T) {
	if to := os.Getenv(childEnv); to != "" {
		for range calls {
			c, err := streamDialer(rconn.Config{}).Dial("rdma", to)
			if err != nil {
				t.Fatal(err)
			}
			go partner(c)
		}
		select {}
	}
	ln := listenStream(t, "0", rconn.Config{})
	c := child(t, ln.Addr().String())
	endings := engage(t, ln.Accept)
	time.Sleep(300 * time.Millisecond)
	killed := time.Now()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	allEnd(t, endings, killed, killLimit, syscall.ECONNRESET)
}

// kill -9 of the listening process.
//
// fault: DEATH-1
func TestBothStreamListenerKilled(t *testing.T) {
	const port = "7011"
	if os.Getenv(childEnv) != "" {
		ln := listenStream(t, port, rconn.Config{})
		for {
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go partner(c)
		}
	}
	c := child(t, "listen")
	waitFor(t, "the child to listen", func() bool { return listening(t, c.Process.Pid) })
	endings := engage(t, func() (net.Conn, error) {
		return streamDialer(rconn.Config{}).Dial("rdma", net.JoinHostPort(addr, port))
	})
	time.Sleep(300 * time.Millisecond)
	killed := time.Now()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	allEnd(t, endings, killed, killLimit, syscall.ECONNRESET)
}

// keen has a keepalive budget of two seconds.
var keen = rconn.Config{KeepAlive: time.Second, KeepAliveTimeout: time.Second}

// keenLimit is the budget, and a second and a half for a slow guest.
const keenLimit = 3500 * time.Millisecond

// A pulled cable is found by senders and by idle readers, within the keepalive budget.
//
// fault: DEATH-3
func TestPairRxeStreamCable(t *testing.T) { testPairStreamCable(t, "down") }

// On iWARP keepalive is the dialing side's: only it is sure to be granted READs.
//
// fault: DEATH-3
func TestPairSiwStreamCable(t *testing.T) { testPairStreamCable(t, "down") }

// The interface stays up, and every packet that the dialing side sends is lost.
//
// fault: DEATH-3
func TestPairRxeStreamAllLost(t *testing.T) { testPairStreamCable(t, "netem", "loss", "100%") }

func testPairStreamCable(t *testing.T, breakIt ...string) {
	const port = "7001"
	if role == "A" {
		ln := listenStream(t, port, keen)
		barrier(t, "listening")
		for range calls {
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go partner(c)
		}
		barrier(t, "connected")
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	d := streamDialer(keen)
	endings := engage(t, func() (net.Conn, error) { return d.Dial("rdma", net.JoinHostPort(peer, port)) })
	barrier(t, "connected")
	time.Sleep(300 * time.Millisecond)
	run(t, append([]string{"cable"}, breakIt...)...) // which takes its time, up to a second
	broken := time.Now()
	allEnd(t, endings, broken, keenLimit, syscall.ETIMEDOUT, syscall.ECONNRESET)
	barrier(t, "done")
}

// A slow and lossy cable loses no byte, whichever way.
func TestPairRxeStreamLossy(t *testing.T) {
	const total = 64 << 20
	lossy(t)
	talk := func(c net.Conn) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(4 * patience))
		wrote := make(chan error, 1)
		begin := time.Now()
		go func() {
			_, err := io.Copy(c, io.LimitReader(new(source), total))
			wrote <- errors.Join(err, c.(*rconn.Conn).CloseWrite())
		}()
		n, err := io.Copy(new(sink), c)
		if err = errors.Join(err, <-wrote); err != nil || n != total {
			t.Errorf("%d bytes of %d, %v", n, total, err)
		}
		t.Logf("seen: %d bytes each way in %v", n, time.Since(begin).Round(time.Millisecond))
	}
	if role == "A" {
		ln := listenStream(t, "7001", rconn.Config{})
		barrier(t, "listening")
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		talk(c)
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	c, err := streamDialer(rconn.Config{}).Dial("rdma", net.JoinHostPort(peer, "7001"))
	if err != nil {
		t.Fatal(err)
	}
	talk(c)
	barrier(t, "done")
}

// lossy makes the cable slow and lossy.
func lossy(t *testing.T) {
	t.Helper()
	run(t, "cable", "netem", "delay", "20ms", "loss", "1%")
}

// net/http over such a cable: every byte. When everything is lost, requests end with an error, the waiting one and the next.
func TestPairRxeHTTPLossy(t *testing.T) {
	lossy(t)
	file := make([]byte, 1<<20)
	new(source).fill(file)
	if role == "A" {
		ln := listenStream(t, "80", keen)
		mux := http.NewServeMux()
		mux.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) { w.Write(file) })
		mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Write(b)
		})
		mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		go http.Serve(ln, mux)
		barrier(t, "listening")
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	d := streamDialer(keen)
	d.Timeout = 5 * time.Second
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	url := "http://" + peer
	body := func(resp *http.Response, err error) []byte {
		t.Helper()
		if err != nil {
			t.Error(err)
			return nil
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return b
	}
	begin := time.Now()
	for range 8 {
		if got := body(client.Get(url + "/file")); !bytes.Equal(got, file) {
			t.Errorf("GET: %d bytes of %d", len(got), len(file))
		}
		if got := body(client.Post(url+"/echo", "", bytes.NewReader(file))); !bytes.Equal(got, file) {
			t.Errorf("POST: %d bytes of %d", len(got), len(file))
		}
	}
	t.Logf("seen: 24 MiB by net/http in %v", time.Since(begin).Round(time.Millisecond))

	waiting := make(chan error, 1)
	go func() {
		_, err := client.Post(url+"/wait", "", nil) // a GET would be tried again
		waiting <- err
	}()
	time.Sleep(500 * time.Millisecond) // it has arrived
	run(t, "cable", "netem", "loss", "100%")
	begin = time.Now()
	if err := <-waiting; err == nil || time.Since(begin) > keenLimit {
		t.Errorf("the request that waited: %v after %v", err, time.Since(begin))
	} else {
		t.Logf("seen: all lost: %v after %v", err, time.Since(begin).Round(time.Millisecond))
	}
	begin = time.Now()
	if _, err := client.Get(url + "/file"); err == nil || time.Since(begin) > 6*time.Second {
		t.Errorf("the next request: %v after %v", err, time.Since(begin))
	}
	barrier(t, "done")
}
