// Rdmaproxy carries TCP and Unix-socket services over RDMA, for programs that cannot be changed. One runs beside the server, one
// beside the client:
//
//	rdmaproxy -forward rdma://10.9.0.1:6379=tcp://127.0.0.1:6379
//	rdmaproxy -forward tcp://127.0.0.1:6379=rdma://10.9.0.1:6379
//
// README.md tells about limits, the end of a process, metrics and systemd.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const help = `usage: rdmaproxy -forward LISTEN=DIAL [-forward ...] [flags]

Carries TCP and Unix-socket services over RDMA. Beside a server, here redis-server on the host 10.9.0.1:
  rdmaproxy -forward rdma://10.9.0.1:6379=tcp://127.0.0.1:6379
Beside its clients, which then connect to 127.0.0.1:6379:
  rdmaproxy -forward tcp://127.0.0.1:6379=rdma://10.9.0.1:6379

` + endpointHelp + `

Flags:
`

// The statuses that the process exits with.
const (
	exitOK    = 0
	exitError = 1 // a listener could not be opened, or was lost
	exitUsage = 2
	exitReset = 3 // connections were still open at the end and were reset
)

// config is what the flags say.
type config struct {
	rules       []*rule
	maxConns    int
	ring        int
	idle        time.Duration
	dialTimeout time.Duration
	drain       time.Duration
	metrics     string
	page        bool
	log         *slog.Logger
}

func main() {
	// Two, so that a second signal is not lost while the first one is dealt with.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(run(os.Args[1:], os.Stderr, signals))
}

// run is the program, without the process around it.
func run(args []string, stderr io.Writer, signals <-chan os.Signal) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage // parse has told
	}

	stop, stopping := context.WithCancelCause(context.Background())
	now, atOnce := context.WithCancel(context.Background())
	defer atOnce()
	defer stopping(nil)
	go func() {
		select {
		case s := <-signals:
			cfg.log.Info("stopping", "signal", s.String(), "drain", cfg.drain)
			stopping(nil)
		case <-now.Done():
			return
		}
		select {
		case s := <-signals:
			cfg.log.Info("stopping at once", "signal", s.String())
			atOnce()
		case <-now.Done():
		}
	}()

	p := newProxy(cfg)
	if err := p.run(stop, stopping, now, atOnce); err != nil {
		cfg.log.Error("rdmaproxy", "err", err)
		return exitError
	}
	if n := p.cut.Load(); n > 0 {
		cfg.log.Warn("connections were reset at the end", "connections", n)
		return exitReset
	}
	return exitOK
}

// parse reads the command line. What is wrong with it is told on stderr.
func parse(args []string, stderr io.Writer) (*config, error) {
	cfg := &config{}
	var level slog.Level
	fs := flag.NewFlagSet("rdmaproxy", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Func("forward", "carry what connects to LISTEN to DIAL; a `rule` LISTEN=DIAL, may be given several times", func(s string) error {
		r, err := parseRule(s)
		if err == nil {
			cfg.rules = append(cfg.rules, r)
		}
		return err
	})
	fs.IntVar(&cfg.maxConns, "max-conns", 1024, "carry at most `N` connections at once, of all rules together; more wait")
	fs.Var((*bytesFlag)(&cfg.ring), "ring", "`size` of each of the two rings of an RDMA connection, such as 64KiB; 0: as rconn chooses")
	fs.DurationVar(&cfg.idle, "idle", 0, "reset connections that carried nothing for this `time`; 0: never")
	fs.DurationVar(&cfg.dialTimeout, "dial-timeout", 10*time.Second, "give a dial up after this `time`, and reset the client")
	fs.DurationVar(&cfg.drain, "drain", 30*time.Second, "after SIGTERM, reset what has not ended in this `time`")
	fs.StringVar(&cfg.metrics, "metrics", "", "serve /metrics for Prometheus by HTTP on this `address`, such as localhost:9400; empty: do not")
	fs.BoolVar(&cfg.page, "page", false, "at -metrics, serve / too: a page of rules and open connections, with clients' addresses")
	fs.TextVar(&level, "log-level", slog.LevelInfo, "log from this `level` on: debug (a line for each connection), info, warn, error")
	fs.Usage = func() {
		fmt.Fprint(stderr, help)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if err := cfg.check(fs.Args()); err != nil {
		fmt.Fprintln(stderr, "rdmaproxy:", err)
		return nil, err
	}
	cfg.log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	return cfg, nil
}

func (cfg *config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: rules are given with -forward", rest[0])
	case len(cfg.rules) == 0:
		return errors.New("nothing to do: give a rule with -forward LISTEN=DIAL")
	case cfg.maxConns < 1:
		return errors.New("-max-conns must be at least 1")
	case cfg.ring == 1:
		return errors.New("-ring must be 0, or at least 2 bytes")
	case cfg.page && cfg.metrics == "":
		return errors.New("-page needs -metrics, the address that serves it")
	case cfg.idle < 0, cfg.dialTimeout <= 0, cfg.drain < 0:
		return errors.New("-idle and -drain must not be negative, -dial-timeout must be positive")
	}
	return nil
}

// bytesFlag is a number of bytes on the command line.
type bytesFlag int

func (b *bytesFlag) String() string { return strconv.Itoa(int(*b)) }

// Set reads 65536, 64KiB or 1MiB.
func (b *bytesFlag) Set(s string) error {
	shift := 0
	for unit, n := range map[string]int{"KiB": 10, "MiB": 20} {
		if number, ok := strings.CutSuffix(s, unit); ok {
			s, shift = number, n
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1<<30>>shift {
		return errors.New("want a number of bytes up to 1 GiB, such as 65536, 64KiB or 1MiB")
	}
	*b = bytesFlag(n << shift)
	return nil
}
