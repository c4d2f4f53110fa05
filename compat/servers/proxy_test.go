//go:build real

package servers

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rconn/rdma/compat"
)

// A program runs beside a test.
type program struct {
	cmd  *exec.Cmd
	end  syscall.Signal // what tells it to end
	once sync.Once
	mu   sync.Mutex
	said bytes.Buffer
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *program) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// run starts a program. At the end of the test, if not before, it gets the signal end, and has to end with status 0.
func run(t *testing.T, cmd *exec.Cmd, end syscall.Signal) *program {
	p := &program{cmd: cmd, end: end}
	cmd.Stdout, cmd.Stderr = p, p
	check(t, cmd.Start())
	t.Cleanup(func() {
		p.terminate(t)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, p)
		}
	})
	return p
}

// terminate sends the signal, once: a second one is more than that for some.
func (p *program) terminate(t *testing.T) {
	p.once.Do(func() { check(t, p.cmd.Process.Signal(p.end)) })
}

// says waits until the program has printed what.
func (p *program) says(t *testing.T, what string) {
	eventually(t, func() error {
		if s := p.String(); !strings.Contains(s, what) {
			return fmt.Errorf("%s does not say %q:\n%s", p.cmd, what, s)
		}
		return nil
	})
}

// proxyProgram builds rdmaproxy, unless RDMAPROXY names it.
var proxyProgram = sync.OnceValues(func() (string, error) {
	if p := os.Getenv("RDMAPROXY"); p != "" {
		return p, nil
	}
	dir, err := os.MkdirTemp("", "rdmaproxy")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-C", "../..", "-o", dir+"/", "./cmd/rdmaproxy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(dir, "rdmaproxy"), nil
})

var listening = regexp.MustCompile(`msg=listening.* address="?(?:rdma://|tcp://)?([0-9.]+:[0-9]+)`)

// proxy runs rdmaproxy with a rule, and returns the address at which it listens.
func proxy(t *testing.T, l link, rule string) (p *program, addr string) {
	file, err := proxyProgram()
	check(t, err)
	cmd := exec.Command(file, "-forward", rule, "-ring", strconv.Itoa(l.ring))
	cmd.Env = append(os.Environ(), "RCONN_DEVICE="+device)
	p = run(t, cmd, syscall.SIGTERM)
	p.says(t, "msg=listening")
	return p, listening.FindStringSubmatch(p.String())[1]
}

// front is the address of a service on a Unix socket: that of an rdmaproxy, and for plain TCP that of another one in front of it.
func front(t *testing.T, l link, socket string) string {
	_, addr := proxy(t, l, "rdma://"+address+":0=unix://"+socket)
	if l.policy == compat.TCPOnly {
		_, addr = proxy(t, l, "tcp://"+address+":0=rdma://"+addr)
	}
	return addr
}

// A client and a server of plain TCP with two proxies between.
func TestProxyPair(t *testing.T) {
	const size = 4 << 20
	var pair []*program
	row{
		name: "rdmaproxy, a pair",
		does: "plain TCP at both ends: 4 connections at once with 4 MiB each way at once, a half-close, and 4 MiB after it; SIGTERM to both " +
			"while a connection has 4 MiB to go",
		start: func(t *testing.T, l link) string {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			serveConns(t, ln, func(c net.Conn) {
				if err := takeAndGive(c, size); err != nil {
					t.Error(err)
				}
			})
			pair = nil
			if l.policy == compat.TCPOnly {
				return ln.Addr().String()
			}
			back, addr := proxy(t, l, "rdma://"+address+":0=tcp://"+ln.Addr().String())
			front, addr := proxy(t, l, "tcp://127.0.0.1:0=rdma://"+addr)
			pair = []*program{front, back}
			return addr
		},
		use: func(t *testing.T, n *network) {
			together(t, 4, func(i int) error { return giveAndTake(t, n.addr, size, uint64(i), func() {}) })
			check(t, giveAndTake(t, n.addr, size, 5, func() {
				for _, p := range pair {
					p.terminate(t)
					p.says(t, "msg=stopping")
				}
			}))
		},
	}.run(t)
}

// giveAndTake is the client: size bytes each way at once, with a call of half after the first half, an end, and as much back.
func giveAndTake(t *testing.T, addr string, size int, seed uint64, half func()) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	data := noise(seed, size)
	// A byte of the server's shows that it has the connection: one on the way to it need not survive the end of a listener.
	got := make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	read := make(chan error, 1)
	go func() {
		rest, err := io.ReadAll(c)
		got = append(got, rest...)
		read <- err
	}()
	_, err = c.Write(data[:size/2])
	half()
	if err == nil {
		_, err = c.Write(data[size/2:])
	}
	if err = errors.Join(err, c.CloseWrite(), <-read); err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if want := append(noise(99, size), sum[:]...); !bytes.Equal(got, append(want, noise(98, size)...)) {
		return fmt.Errorf("%d bytes that differ from those of the server", len(got))
	}
	return nil
}

// takeAndGive is the server: what it says after the client's end begins with the hash of all that it got.
func takeAndGive(c net.Conn, size int) error {
	defer c.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(noise(99, size))
		sent <- err
	}()
	h := sha256.New()
	_, err := io.Copy(h, c)
	if err = errors.Join(err, <-sent); err == nil {
		_, err = c.Write(h.Sum(nil))
	}
	if err == nil {
		_, err = c.Write(noise(98, size))
	}
	return err
}
