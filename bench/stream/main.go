// Stream measures streams: package rconn on an RDMA device and on the software device, beside C rsocket (rstream), the device's own
// limit (perftest), Go's TCP and Unix sockets. Every measurement is the same work between two processes; rounds alternate between
// the contenders, so that whatever else the machine does hits all of them. It prints medians, their spread, ratios and goals,
// and writes a page with plots.
//
//	stream                          # or make bench: the software device beside TCP
//	stream -addr 10.9.0.1           # or make vm-bench: beside those the RDMA device that serves the address, rstream and perftest
//	stream -only 1MiB -rounds 3     # work whose name matches
//
// What is measured and how to read it is in docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// options are the flags.
type options struct {
	addr    string
	rounds  int
	length  time.Duration
	idle    time.Duration
	only    *regexp.Regexp
	who     *regexp.Regexp
	peers   string
	html    string
	json    string
	doc     string
	section string
	list    bool
	verbose bool
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "", "measure the RDMA device that serves this `address` of this host too")
	flag.IntVar(&o.rounds, "rounds", 7, "how often each measurement is made, after one that warms up")
	flag.DurationVar(&o.length, "time", 300*time.Millisecond, "how long one measurement takes, about")
	flag.DurationVar(&o.idle, "idle", keepalivePeriod, "how long idle connections are watched: by default as long as each asks its peer once")
	only := flag.String("only", "", "measure only work whose name matches this `regexp`")
	who := flag.String("who", "", "measure only contenders whose name matches this `regexp`: one alone, for a profile")
	flag.StringVar(&o.peers, "peers", "", "the `folder` with the C programs of testbed/peers; without it their measurements fail")
	flag.StringVar(&o.html, "html", "", "write a page with tables and plots to this `file`")
	flag.StringVar(&o.json, "json", "", "keep the results in this `file`: work that is not measured now is taken from it")
	flag.StringVar(&o.doc, "doc", "", "write the tables into this `file`, between <!-- bench SECTION --> and <!-- end -->")
	flag.StringVar(&o.section, "section", "", "of the file")
	flag.BoolVar(&o.list, "list", false, "list the work and the contenders")
	flag.BoolVar(&o.verbose, "v", false, "tell what each measurement gave, and how long it and its preparation took")
	worker := flag.Bool("worker", false, "be one of the two processes, on standard input and output")
	flag.Parse()

	var err error
	if *worker {
		err = work(os.Stdin, os.Stdout)
	} else if o.only, o.who, err = compile(*only, *who); err == nil {
		if o.rounds < 1 || o.length <= 0 {
			err = errors.New("-rounds and -time must be more than 0")
		} else if *who != "" && (o.doc != "" || o.json != "") {
			err = errors.New("-who leaves out what others are compared with: not with -doc or -json")
		} else {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			err = run(ctx, o)
			stop()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stream:", err)
		os.Exit(1)
	}
}

func compile(only, who string) (o, w *regexp.Regexp, err error) {
	o, err1 := regexp.Compile(only)
	w, err2 := regexp.Compile(who)
	return o, w, errors.Join(err1, err2)
}

// run measures and shows the results.
func run(ctx context.Context, o options) error {
	plan := planFor(o)
	if o.list {
		for _, w := range plan {
			fmt.Print(w.name, ":")
			for _, c := range w.contenders {
				fmt.Print(" ", c.name, ";")
			}
			fmt.Println()
		}
		return nil
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.stop()
	r, err := b.measure(plan)
	if err != nil {
		return err
	}
	if o.json != "" {
		if err := r.keep(o.json); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	if o.html != "" {
		if err := r.writePage(o.html); err != nil {
			return err
		}
	}
	if o.doc != "" {
		if err := r.intoFile(o.doc, o.section); err != nil {
			return err
		}
	}
	if n := len(b.failures); n > 0 {
		return fmt.Errorf("%d measurements failed, see the warnings", n)
	}
	return nil
}
