package rconn

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy is a hop between two software devices that can do what networks do: stop, fall silent one way or both, end in the middle of
// something. What it does not pass on, it does not take either, but for one buffer, so that TCP fills up behind it.
type proxy struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	held    [2]bool // by direction
	left    int     // bytes to pass on toward the listener until the cut; negative: none is due
	cut     func(*net.TCPConn)
	conns   map[*net.TCPConn]bool
	closed  bool
}

// Directions of a proxy.
const (
	toListener = iota
	toDialer
)

// newProxy makes a proxy in front of an address. It ends with the test.
func newProxy(t testing.TB, to net.Addr) *proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{ln: ln, to: to.String(), left: -1, conns: map[*net.TCPConn]bool{}}
	p.changed.L = &p.mu
	p.wg.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

// proxied makes a connection with a proxy in its way.
func (n *network) proxied(t testing.TB) (dialed, accepted *Conn, p *proxy) {
	ln := n.listen(t, n.addr)
	defer ln.Close()
	p = newProxy(t, ln.Addr())
	dialed, accepted = n.connect(t, ln, p.addr())
	return dialed, accepted, p
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

func (p *proxy) serve() {
	for {
		in, err := p.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.(*net.TCPConn).SetLinger(0)
			in.Close()
			continue
		}
		dialer, listener := in.(*net.TCPConn), out.(*net.TCPConn)
		p.mu.Lock()
		p.conns[dialer], p.conns[listener] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(toListener, listener, dialer) })
		p.wg.Go(func() { p.pass(toDialer, dialer, listener) })
	}
}

// pass copies one direction until its end.
func (p *proxy) pass(way int, to, from *net.TCPConn) {
	defer from.CloseRead()
	defer to.CloseWrite()
	buf := make([]byte, 32<<10)
	for {
		k, err := from.Read(buf)
		p.mu.Lock()
		for p.held[way] && !p.closed {
			p.changed.Wait()
		}
		var cut func(*net.TCPConn)
		if way == toListener && p.left >= 0 {
			if k >= p.left {
				k, cut, p.left = p.left, p.cut, -1
			} else {
				p.left -= k
			}
		}
		p.mu.Unlock()
		if _, werr := to.Write(buf[:k]); werr != nil || err != nil {
			return
		}
		if cut != nil {
			cut(to)
			cut(from)
			return
		}
	}
}

// hold stops the directions, release lets them go on.
func (p *proxy) hold(ways ...int) { p.set(true, ways) }

func (p *proxy) release(ways ...int) { p.set(false, ways) }

func (p *proxy) set(held bool, ways []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range ways {
		p.held[w] = held
	}
	p.changed.Broadcast()
}

// reset ends a TCP connection by RST, finish in order: what TCP does when a process dies, and what middle boxes do.
func reset(c *net.TCPConn) { c.SetLinger(0); c.Close() }

func finish(c *net.TCPConn) { c.CloseWrite() }

// cutAfter ends the connection in the given way once so many bytes more have gone to the listener.
func (p *proxy) cutAfter(bytes int, how func(*net.TCPConn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.cut = bytes, how
}

// reset resets all connections that there are.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
	clear(p.conns)
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	p.mu.Unlock()
	p.ln.Close()
	p.reset()
	p.wg.Wait()
}
