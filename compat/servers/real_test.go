//go:build real

// Programs that have to be installed, behind rdmaproxy. tools/compat.sh installs them.

package servers

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

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
			server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
			run(t, server, syscall.SIGTERM).says(t, "ready to accept connections")
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
			// On SIGTERM it would wait for its clients.
			run(t, cmd, syscall.SIGINT).says(t, "ready to accept connections")
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
