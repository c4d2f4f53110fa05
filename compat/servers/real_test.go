//go:build real

// Programs that have to be installed, behind rdmaproxy. tools/compat.sh installs them.

package servers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/rconn/rdma/compat"
)

// output keeps what a program says.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// run starts a program. At the end of the test it gets SIGTERM and has to end with status 0.
func run(t *testing.T, cmd *exec.Cmd) *output {
	o := new(output)
	cmd.Stdout, cmd.Stderr = o, o
	check(t, cmd.Start())
	t.Cleanup(func() {
		check(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, o)
		}
	})
	return o
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

// front is the address of a service on a Unix socket: that of an rdmaproxy, and for plain TCP that of another one in front of it.
func front(t *testing.T, l link, socket string) string {
	addr := proxy(t, l, "rdma://"+address+":0=unix://"+socket)
	if l.policy == compat.TCPOnly {
		addr = proxy(t, l, "tcp://"+address+":0=rdma://"+addr)
	}
	return addr
}

// proxy runs rdmaproxy with a rule, and returns the address at which it listens.
func proxy(t *testing.T, l link, rule string) string {
	program, err := proxyProgram()
	check(t, err)
	cmd := exec.Command(program, "-forward", rule, "-ring", strconv.Itoa(l.ring))
	cmd.Env = append(os.Environ(), "RCONN_DEVICE="+device)
	o := run(t, cmd)
	var addr string
	eventually(t, func() error {
		m := listening.FindStringSubmatch(o.String())
		if m == nil {
			return fmt.Errorf("rdmaproxy does not listen:\n%s", o)
		}
		addr = m[1]
		return nil
	})
	return addr
}

// answers waits for a socket that takes connections.
func answers(t *testing.T, socket string, o *output) {
	eventually(t, func() error {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, o)
		}
		return c.Close()
	})
}

// versionOf asks a program for its version.
func versionOf(t *testing.T, program string, args ...string) string {
	out, err := exec.Command(program, args...).Output()
	check(t, err)
	return regexp.MustCompile(`[0-9]+(\.[0-9]+)+`).FindString(string(out))
}

func TestRealRedis(t *testing.T) {
	row{
		name: "Redis behind rdmaproxy", modules: []string{"github.com/redis/go-redis/v9", "redis-server " + versionOf(t, "redis-server", "--version")},
		does: redisDoes,
		start: func(t *testing.T, l link) string {
			dir := t.TempDir()
			socket := filepath.Join(dir, "redis")
			o := run(t, exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir))
			answers(t, socket, o)
			return front(t, l, socket)
		},
		use: func(t *testing.T, n *network) { useRedis(t, n, 10_000) },
	}.run(t)
}

func TestRealPostgres(t *testing.T) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	check(t, err)
	if len(bins) == 0 {
		t.Fatal("PostgreSQL is not installed")
	}
	bin := bins[len(bins)-1]
	row{
		name: "PostgreSQL behind rdmaproxy", modules: []string{"github.com/jackc/pgx/v5", "PostgreSQL " + versionOf(t, bin+"/postgres", "--version")},
		does: "10 connections of a pool with transactions that conflict, COPY of 50 000 rows and all of them back, 4 MiB in a value, NOTIFY, a cancelled " +
			"query, errors, database/sql",
		start: func(t *testing.T, l link) string {
			dir, err := os.MkdirTemp("/tmp", "pg") // a short path: it is a socket's
			check(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			attr := asPostgres(t, dir)
			initdb := exec.Command(bin+"/initdb", "-D", dir+"/db", "-A", "trust", "-U", "gopher", "--no-sync")
			initdb.SysProcAttr, initdb.Dir = attr, dir
			out, err := initdb.CombinedOutput()
			if err != nil {
				t.Fatalf("initdb: %v\n%s", err, out)
			}
			cmd := exec.Command(bin+"/postgres", "-D", dir+"/db", "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir, "-c", "fsync=off")
			cmd.SysProcAttr, cmd.Dir = attr, dir
			o := run(t, cmd)
			eventually(t, func() error {
				if !bytes.Contains([]byte(o.String()), []byte("ready to accept connections")) {
					return fmt.Errorf("postgres is not ready:\n%s", o)
				}
				return nil
			})
			return front(t, l, dir+"/.s.PGSQL.5432")
		},
		use: usePostgres,
	}.run(t)
}

// asPostgres gives the directory to one who may run PostgreSQL, which refuses root.
func asPostgres(t *testing.T, dir string) *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	check(t, err)
	uid, err := strconv.Atoi(u.Uid)
	check(t, err)
	gid, err := strconv.Atoi(u.Gid)
	check(t, err)
	check(t, os.Chown(dir, uid, gid))
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
