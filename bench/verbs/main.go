// Verbs measures the operations of RDMA side by side on one device: SEND, WRITE, WRITE WITH IMM, READ and atomics, by size, between
// two processes. It takes rounds in which every operation has its turn, so that whatever else the machine does hits all of them,
// and prints medians, their spread, and ratios to SEND.
//
//	verbs                       # or make bench-verbs: on loopback, which the software device serves
//	verbs -addr 10.9.0.1        # on the RDMA device that serves the address
//	verbs -size 8,4096 -work READ -rounds 15
//	verbs -doc docs/verbs.md    # writes the tables into a document, between the markers for the device
//
// What the columns hold is in docs/verbs.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	rounds int
	length time.Duration
	spin   time.Duration
	only   *regexp.Regexp
	sizes  []int
}

func main() {
	rounds := flag.Int("rounds", 7, "how often each measurement is made")
	length := flag.Duration("time", 150*time.Millisecond, "how long one measurement takes")
	spin := flag.Duration("spin", 20*time.Microsecond, "watch for a completion this long before sleeping")
	only := flag.String("work", "", "measure only operations whose name matches this `regexp`; SEND always")
	sizes := flag.String("size", "8,64,1024,4096,65536,1048576", "`bytes`, multiples of 8 up to 16 MiB")
	addr := flag.String("addr", "127.0.0.1", "the device is the one that serves this `address` of this host")
	markdown := flag.Bool("markdown", false, "print tables in Markdown")
	doc := flag.String("doc", "", "write the tables into this `file`, between its markers <!-- bench-verbs SECTION --> and <!-- end -->")
	section := flag.String("section", "", "of the file; default the device's name")
	peer := flag.Bool("peer", false, "be the other process")
	flag.Parse()

	o := options{rounds: *rounds, length: *length, spin: *spin}
	err := o.parse(*only, *sizes)
	var local netip.Addr
	if err == nil {
		local, err = netip.ParseAddr(*addr)
	}
	switch {
	case err != nil:
	case *peer:
		err = peerProcess(netip.AddrPortFrom(local, 0), o.spin)
	default:
		err = run(o, local, *markdown, *doc, *section)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verbs:", err)
		os.Exit(1)
	}
}

func (o *options) parse(only, sizes string) (err error) {
	if o.rounds < 1 || o.length <= 0 {
		return fmt.Errorf("-rounds and -time must be more than 0")
	}
	if o.only, err = regexp.Compile(only); err != nil {
		return err
	}
	for _, s := range strings.Split(sizes, ",") {
		size, err := strconv.Atoi(s)
		if err != nil || size < 8 || size%8 != 0 || size > maxSize {
			return fmt.Errorf("-size %s: want multiples of 8, 8 to %d", s, maxSize)
		}
		o.sizes = append(o.sizes, size)
	}
	return nil
}

// run measures against another process and shows the tables.
func run(o options, local netip.Addr, markdown bool, doc, section string) error {
	p, err := start(local, o.spin)
	if err != nil {
		return err
	}
	defer p.stop()
	report, err := measure(context.Background(), o, p)
	if err != nil {
		return err
	}
	if doc == "" {
		return report.print(os.Stdout, markdown)
	}
	var text strings.Builder
	if err := report.print(&text, true); err != nil {
		return err
	}
	if section == "" {
		section = report.device
	}
	if err := intoFile(doc, section, text.String()); err != nil {
		return err
	}
	return report.print(os.Stdout, false)
}

// peerSide is the other process as the measurements see it.
type peerSide interface {
	// address is where it listens.
	address() netip.AddrPort
	// used waits until it has done with the last connection, and tells the processor time that its process has used meanwhile.
	used() (time.Duration, error)
}

// measure makes all measurements, round by round. The first round warms up.
func measure(ctx context.Context, o options, p peerSide) (*report, error) {
	dev, err := deviceFor(ctx, p.address())
	if err != nil {
		return nil, err
	}
	cases, lacking := casesFor(dev, o)
	r := &report{device: dev.Name(), cases: cases, lacking: lacking}
	r.head = fmt.Sprintf("%s (%v): %s, %s/%s, %d processors (%s), %d rounds of %v, two processes", dev.Name(), dev.Attr().Transport,
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), o.rounds, o.length)
	for round := range o.rounds + 1 {
		for i := range cases {
			c := &cases[i]
			got, err := c.measure(ctx, o, p)
			if err != nil {
				return nil, fmt.Errorf("%s, %d bytes: %w", c.name, c.size, err)
			}
			if round > 0 {
				c.results = append(c.results, got)
			}
		}
	}
	return r, nil
}

// report is what was measured on a device.
type report struct {
	device  string
	head    string
	cases   []benchCase
	lacking []string // operations that the device does not have
}

// processor names the processor, where the system tells.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return "processor not known"
}

// print writes the tables, in Markdown or for a terminal.
func (r *report) print(w io.Writer, markdown bool) error {
	fmt.Fprintln(w, r.head)
	if len(r.lacking) > 0 {
		fmt.Fprintf(w, "\n%s has no %s.\n", r.device, strings.Join(r.lacking, ", "))
	}
	for _, t := range []table{r.latency(), r.rate()} {
		fmt.Fprintln(w)
		if err := t.print(w, markdown); err != nil {
			return err
		}
	}
	return nil
}

// median of numbers, and how far the largest is from the smallest, as a part of it.
func median(numbers []float64) (middle, spread float64) {
	sorted := slices.Sorted(slices.Values(numbers))
	middle = sorted[len(sorted)/2]
	return middle, (sorted[len(sorted)-1] - sorted[0]) / middle
}
