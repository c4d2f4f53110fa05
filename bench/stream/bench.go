package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// bench is what measurements run on.
type bench struct {
	options
	ctx    context.Context
	pair   pair
	device string                   // the name of the one that serves the address
	gid    string                   // its index of the address
	ports  int                      // used
	starts map[string]time.Duration // see startCPU

	speed    speed
	failures []string
}

func newBench(ctx context.Context, o options) (*bench, error) {
	b := &bench{options: o, ctx: ctx, starts: map[string]time.Duration{}, ports: os.Getpid() * 100}
	if o.addr != "" {
		var err error
		if b.device, b.gid, err = deviceFor(o.addr); err != nil {
			return nil, err
		}
	}
	var err error
	b.pair, err = startPair(ctx)
	return b, err
}

func (b *bench) stop() { b.pair.stop() }

// gaveUp is the count of a contender that failed once.
const gaveUp = -1

// measure makes all measurements, in rounds. The first warms up, and tells how much can be done in the time.
func (b *bench) measure(plan []job) (*results, error) {
	r := &results{Head: b.head(), Processors: runtime.NumCPU(), Notes: b.warnings()}
	for _, j := range plan {
		o := outcome{Work: j.name, Group: j.group, Unit: j.unit, Smaller: j.smaller, Size: j.size, Conns: j.conns, Head: r.Head}
		for _, c := range j.contenders {
			o.Results = append(o.Results, measured{Contender: c.name})
		}
		r.Outcomes = append(r.Outcomes, o)
	}
	counts := make(map[[2]int]int)
	for round := range b.rounds + 1 {
		start := time.Now()
		for i, j := range plan {
			if j.isKept() {
				if round == 0 { // with all that follow
					if err := b.keep(j, &r.Outcomes[i]); err != nil {
						return nil, err
					}
				}
				continue
			}
			b.speed.look()
			for k, c := range j.contenders {
				key := [2]int{i, k}
				if counts[key] == gaveUp {
					continue
				}
				begin := time.Now()
				n := max(1, counts[key])
				if round == 0 {
					n = j.first()
				}
				s, err := c.run(b, n)
				got := &r.Outcomes[i].Results[k].Rounds
				if err != nil {
					if err := b.failed(j, c, err); err != nil {
						return nil, err
					}
					// Its rounds would be compared with others'.
					counts[key], *got = gaveUp, nil
					continue
				}
				b.tell(j, c, s, begin)
				counts[key] = scaled(n, s.Took, b.length*time.Duration(max(1, j.longer)))
				if round > 0 {
					*got = append(*got, s)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %.0f s\n", round, b.rounds, time.Since(start).Seconds())
	}
	r.Notes = append(append(r.Notes, b.speed.doubt()...), b.failures...)
	r.Settings = slices.Sorted(maps.Keys(b.pair.infos))
	return r, nil
}

// failed goes on after a failure, with new processes: what the others did is worth having. The run ends with an error all the same.
func (b *bench) failed(j job, c contender, err error) error {
	if err := b.note(j, c, err); err != nil {
		return err
	}
	b.pair.kill()
	pair, err := startPair(b.ctx)
	if err != nil {
		return err
	}
	pair.infos = b.pair.infos
	b.pair = pair
	return nil
}

// note remembers a failure. It returns an error if the whole run shall end.
func (b *bench) note(j job, c contender, err error) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	what := fmt.Sprintf("FAILED: %s, %s: %v", j.name, c.name, err)
	fmt.Fprintln(os.Stderr, what)
	b.failures = append(b.failures, what)
	return nil
}

// tell follows the measurements, for those who wait or wonder.
func (b *bench) tell(j job, c contender, s sample, begin time.Time) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, "%s, %s: %s, %.2f s of %.2f\n", j.name, c.name, figure(s.Numbers[nValue]), s.Took.Seconds(), time.Since(begin).Seconds())
	}
}

// first is how often a work is done in the round that warms up: a part of what takes the usual time.
func (j job) first() int {
	switch j.group {
	case gRoundTrip, gHTTP:
		return 100
	case gFan:
		return max(2, 100/j.conns)
	case gShare:
		return 400
	case gStream, gBoth, gMixed:
		return min(1000, max(4, 2<<20/j.size))
	}
	return 1
}

// scaled is how often to do what took so long for n times, to fill the time.
func scaled(n int, took, length time.Duration) int {
	if took <= 0 {
		return n
	}
	return max(1, int(float64(n)*length.Seconds()/took.Seconds()))
}

// head names the machine and the settings.
func (b *bench) head() string {
	on := "loopback"
	if b.device != "" {
		on = b.device + " at " + b.addr
	}
	return fmt.Sprintf("%s, %s/%s, kernel %s, %d processors (%s), %s, %d rounds of about %v, two processes", runtime.Version(), runtime.GOOS,
		runtime.GOARCH, kernel(), runtime.NumCPU(), processor(), on, b.rounds, b.length)
}

// warnings tell what makes figures worth less.
func (b *bench) warnings() (notes []string) {
	if b.rounds < 7 {
		notes = append(notes, fmt.Sprintf("%d rounds: medians of fewer than 7 are for a first look", b.rounds))
	}
	if b.device != "" && !strings.HasPrefix(kernel(), "6.1.") {
		notes = append(notes, "the goals are for kernel 6.1, this is "+kernel())
	}
	if load := loadAverage(); load > 0.7*float64(runtime.NumCPU()) {
		notes = append(notes, fmt.Sprintf("the machine was busy before: load average %.1f on %d processors", load, runtime.NumCPU()))
	}
	if load := os.Getenv("HOST_LOAD"); load != "" {
		notes = append(notes, "load average of the host before: "+load)
	}
	return notes
}

func readLine(name string) string {
	text, _ := os.ReadFile(name)
	return strings.TrimSpace(string(text))
}

func kernel() string {
	if k := readLine("/proc/sys/kernel/osrelease"); k != "" {
		return k
	}
	return "not known"
}

func loadAverage() (load float64) {
	_, _ = fmt.Sscan(readLine("/proc/loadavg"), &load)
	return load
}

// processor names the processor, where the system tells.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "processor not known"
}

// kernelMemory is what the kernel itself uses, in bytes: slabs, its stacks and page tables, and what it has mapped, queues of
// devices among it.
func kernelMemory() (bytes float64) {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Slab", "KernelStack", "PageTables", "VmallocUsed":
			var kib float64
			_, _ = fmt.Sscan(value, &kib)
			bytes += kib * 1024
		}
	}
	return bytes
}

// deviceFor finds the RoCE device that has an IPv4 address, and the address's index there.
func deviceFor(addr string) (device, gid string, err error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil || !ip.Is4() {
		return "", "", fmt.Errorf("-addr %s: want an IPv4 address of this host", addr)
	}
	a := ip.As4()
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a[0], a[1], a[2], a[3])
	names, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/gids/*")
	for _, name := range names {
		if readLine(name) == want {
			return strings.Split(name, "/")[4], filepath.Base(name), nil
		}
	}
	return "", "", fmt.Errorf("-addr %s: no RoCE device of this host has this address (rdma link shows them)", addr)
}
