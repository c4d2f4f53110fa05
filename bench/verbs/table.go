package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table is text in columns, the first row their names.
type table [][]string

// find returns the case that another one is compared with.
func (r *report) find(name string, size int) *benchCase {
	i := slices.IndexFunc(r.cases, func(c benchCase) bool { return c.name == name && c.size == size })
	return &r.cases[i]
}

// values collects one number of all rounds.
func (c *benchCase) values(f func(result) float64) []float64 {
	all := make([]float64, len(c.results))
	for i, r := range c.results {
		all[i] = f(r)
	}
	return all
}

func (c *benchCase) lateness() (middle, spread float64) {
	return median(c.values(func(r result) float64 { return micros(r.median) }))
}

func (c *benchCase) rate() (middle, spread float64) {
	return median(c.values(func(r result) float64 { return r.ops }))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// latency is the table of times.
func (r *report) latency() table {
	t := table{{"bytes", "operation", "time", "median µs", "p99 µs", "spread", "ratio", "to"}}
	for i := range r.cases {
		c := &r.cases[i]
		middle, spread := c.lateness()
		p99, _ := median(c.values(func(r result) float64 { return micros(r.p99) }))
		base, _ := r.find(c.like, c.size).lateness()
		t = append(t, []string{
			fmt.Sprint(c.size), c.name, c.timed, number(middle), number(p99), percent(spread), ratio(middle / base), c.like,
		})
	}
	return t
}

// rate is the table of operations a second with a full queue.
func (r *report) rate() table {
	t := table{{"bytes", "operation", "1000/s", "MiB/s", "spread", "to SEND", "peer's CPU µs"}}
	for i := range r.cases {
		c := &r.cases[i]
		if !c.rated {
			continue
		}
		ops, spread := c.rate()
		base, _ := r.find(send, c.size).rate()
		cpu := "?"
		if cpuKnown {
			used, _ := median(c.values(func(r result) float64 { return r.cpu * 1e6 }))
			cpu = number(used)
		}
		t = append(t, []string{
			fmt.Sprint(c.size), c.name, number(ops / 1e3), number(ops * float64(c.size) / (1 << 20)), percent(spread),
			ratio(ops / base), cpu,
		})
	}
	return t
}

// number has three digits that count.
func number(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// ratio has two digits that count, where it is small.
func ratio(x float64) string {
	if x < 0.1 {
		return fmt.Sprintf("%.3f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func percent(x float64) string { return fmt.Sprintf("%.0f%%", 100*x) }

// text reports whether a column holds words.
func text(name string) bool { return slices.Contains([]string{"operation", "time", "to"}, name) }

func (t table) print(w io.Writer, markdown bool) error {
	if !markdown {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range t {
			fmt.Fprintln(tw, strings.Join(row, "\t"))
		}
		return tw.Flush()
	}
	rule := make([]string, len(t[0]))
	for i, name := range t[0] {
		if rule[i] = "---:"; text(name) {
			rule[i] = "---"
		}
	}
	for _, row := range slices.Insert(slices.Clone(t), 1, rule) {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// intoFile replaces what is between the markers of a section.
func intoFile(name, section, text string) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := replaceSection(string(old), section, text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}

func replaceSection(doc, section, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- bench-verbs %s -->\n", section), "<!-- end -->\n"
	before, rest, ok1 := strings.Cut(doc, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + "\n" + strings.TrimSpace(text) + "\n\n" + end + after, nil
}
