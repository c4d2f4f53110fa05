// Soft measures the software device beside Go's TCP: the same work over loopback, between two processes, in rounds that
// alternate between the two, so that whatever else the machine does hits both. It prints the medians, their spread and the ratios.
//
//	soft            # or make bench-soft
//	soft -rounds 15 -time 1s -work rtt
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// transports are compared in this order; the ratio is of the second to the first.
var transports = []string{"tcp", "software"}

func main() {
	rounds := flag.Int("rounds", 11, "how often each measurement is made")
	length := flag.Duration("time", 300*time.Millisecond, "how long one measurement takes")
	only := flag.String("work", "", "measure only work whose name matches this `regexp`")
	peer := flag.String("peer", "", "be the other process, on this `transport`")
	flag.Parse()

	var err error
	if *peer != "" {
		err = serve(*peer)
	} else {
		err = measure(*rounds, *length, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soft:", err)
		os.Exit(1)
	}
}

// result is what one round of one work gave on one transport.
type result struct {
	rate   float64 // in the work's unit
	allocs float64 // objects allocated by both processes, per operation
}

func measure(rounds int, length time.Duration, only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	selected := slices.DeleteFunc(slices.Clone(works), func(w work) bool { return !match.MatchString(w.name) })
	peers := make([]*process, len(transports))
	for i, t := range transports {
		if peers[i], err = start(t); err != nil {
			return err
		}
		defer peers[i].stop()
	}
	fmt.Printf("%s, %s/%s, %d processors, %d rounds of %v, two processes on loopback\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), rounds, length)

	results := make([][]result, len(selected)*len(transports)) // by work, then by transport
	for round := range rounds + 1 {
		for i, w := range selected {
			for j, p := range peers {
				r, err := w.run(p, length)
				if err != nil {
					return fmt.Errorf("%s over %s: %w", w.name, transports[j], err)
				}
				if round > 0 { // the first warms up
					k := i*len(transports) + j
					results[k] = append(results[k], r)
				}
			}
		}
	}
	return table(selected, results)
}

func table(selected []work, results [][]result) error {
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "work\tunit\t")
	for _, t := range transports {
		fmt.Fprintf(tw, "%s\tspread\t", t)
	}
	fmt.Fprintln(tw, "ratio\tgoal\t\tallocs/op\t")
	for i, w := range selected {
		fmt.Fprintf(tw, "%s\t%s\t", w.name, w.unit)
		var medians []float64
		var allocs float64
		for _, rs := range results[i*len(transports):][:len(transports)] {
			rates := make([]float64, len(rs))
			objects := make([]float64, len(rs))
			for k, r := range rs {
				rates[k], objects[k] = r.rate, r.allocs
			}
			slices.Sort(rates)
			slices.Sort(objects)
			median := rates[len(rates)/2]
			medians, allocs = append(medians, median), objects[len(objects)/2]
			fmt.Fprintf(tw, "%.*f\t%.0f%%\t", w.digits, median, 100*(rates[len(rates)-1]-rates[0])/median)
		}
		ratio := medians[1] / medians[0]
		verdict := "PASS"
		if w.smaller && ratio > w.goal || !w.smaller && ratio < w.goal {
			verdict = "MISSED"
		}
		sign := ">="
		if w.smaller {
			sign = "<="
		}
		fmt.Fprintf(tw, "%.2f\t%s %.2f\t%s\t%.2f\t\n", ratio, sign, w.goal, verdict, allocs)
	}
	return tw.Flush()
}
