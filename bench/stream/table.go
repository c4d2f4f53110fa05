package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// table is text in columns, the first row their names.
type table [][]string

// print writes it for a terminal.
func (t table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush()
}

// markdown writes it for a document.
func (t table) markdown(w io.Writer) {
	rule := make([]string, len(t[0]))
	for i := range rule {
		if rule[i] = "---:"; t.words(i) {
			rule[i] = "---"
		}
	}
	for _, row := range slices.Insert(slices.Clone(t), 1, rule) {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

// words reports whether a column holds other things than numbers. The first one names the row.
func (t table) words(column int) bool {
	if column == 0 {
		return true
	}
	for _, row := range t[1:] {
		if row[column] != "" && !strings.ContainsAny(row[column][:1], "0123456789") {
			return true
		}
	}
	return false
}

// column is a column of the tables of results.
type column struct {
	title string
	cell  func(o *outcome, m *measured) string
}

// number is a column with a median.
func number(title, name string) column {
	return column{title, func(_ *outcome, m *measured) string {
		if x, ok := m.median(name); ok {
			return figure(x)
		}
		return ""
	}}
}

// to is a column with the ratio to another contender.
func to(contender string) column {
	return column{"to " + contender, func(o *outcome, m *measured) string {
		base := o.find(contender)
		// Idle, plain sockets use nothing but what it takes to tell so.
		if o.Group == gIdle || base == nil || base == m || len(base.Rounds) == 0 || len(m.Rounds) == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", ratioOf(m.numbers(nValue), base.numbers(nValue)).value)
	}}
}

var columns = []column{
	{"spread", func(_ *outcome, m *measured) string {
		if x := m.numbers(nValue); len(x) > 1 {
			return fmt.Sprintf("%.0f%%", 100*spread(x))
		}
		return ""
	}},
	to(cRstream), to(cWriteBW), to(cWriteLat), to(cRsocket), to(cTCP),
	number("median µs", nMedian), number("p99 µs", nP99),
	number("CPU ns/B", nCPUByte), number("CPU µs/msg", nCPUMsg), number("CPUs busy", nBusy),
	number("parks/msg", nParks), number("RDMA/msg", nPosted), number("allocs/msg", nAllocs),
	number("threads", nThreads), number("fds", nFDs), number("pinned KiB", nPinned), number("resident KiB", nResident),
	number("kernel KiB", nKernel), number("opened/s", nOpened), number("uneven", nUneven),
}

// table shows a group of work.
func (r *results) table(group string) table {
	var t table
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Group != group {
			continue
		}
		if t == nil {
			t = table{{"", "", o.Unit}}
			for _, c := range columns {
				t[0] = append(t[0], c.title)
			}
		}
		for k := range o.Results {
			m := &o.Results[k]
			value, ok := m.median(nValue)
			if !ok {
				continue
			}
			row := []string{strings.TrimPrefix(strings.TrimPrefix(o.Work, o.Group+" "), "mixed "), m.Contender, figure(value)}
			for _, c := range columns {
				row = append(row, c.cell(o, m))
			}
			t = append(t, row)
		}
	}
	return t.filled()
}

// filled is the table without the columns that hold nothing.
func (t table) filled() table {
	if len(t) < 2 {
		return nil
	}
	keep := make([]bool, len(t[0]))
	for _, row := range t[1:] {
		for i, cell := range row {
			keep[i] = keep[i] || cell != ""
		}
	}
	var less table
	for _, row := range t {
		var cells []string
		for i, cell := range row {
			if keep[i] {
				cells = append(cells, cell)
			}
		}
		less = append(less, cells)
	}
	return less
}

// figure has three digits that count, but nothing below a thousandth.
func figure(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x):
		return "?"
	case a < 0.0005:
		return "0"
	case a < 0.1:
		return fmt.Sprintf("%.3f", x)
	case a < 10:
		return fmt.Sprintf("%.2f", x)
	case a < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// doubts are the warnings about what was measured.
func (r *results) doubts() (notes []string) {
	var wide, busy []string
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		for k := range o.Results {
			m := &o.Results[k]
			name := o.Work + " " + m.Contender
			if x := m.numbers(nValue); len(x) > 1 && spread(x) > 0.5 {
				wide = append(wide, fmt.Sprintf("%s (%.0f %%)", name, 100*spread(x)))
			}
			if used, ok := m.median(nBusy); ok && r.Processors > 0 && used > 0.95*float64(r.Processors) {
				busy = append(busy, name)
			}
		}
	}
	if wide != nil {
		notes = append(notes, "the rounds differ by more than half of their median, compare these with care: "+some(wide))
	}
	if busy != nil {
		notes = append(notes, fmt.Sprintf("the two processes kept all %d processors busy, what the kernel does for the device had to wait for them: %s",
			r.Processors, some(busy)))
	}
	return notes
}

// some names the first of many.
func some(names []string) string {
	const most = 8
	if len(names) > most+1 {
		return strings.Join(names[:most], "; ") + fmt.Sprintf("; and %d more", len(names)-most)
	}
	return strings.Join(names, "; ")
}

// print writes everything for a terminal.
func (r *results) print(w io.Writer) {
	fmt.Fprintln(w, r.Head)
	for _, line := range r.Settings {
		fmt.Fprintln(w, line)
	}
	for _, g := range groups {
		if t := r.table(g); t != nil {
			fmt.Fprintf(w, "\n%s. %s\n", strings.ToUpper(g[:1])+g[1:], about[g])
			t.print(w)
		}
	}
	if notes := append(slices.Clone(r.Notes), r.doubts()...); len(notes) > 0 {
		fmt.Fprintln(w, "\nWarnings")
		for _, n := range notes {
			fmt.Fprintln(w, "-", n)
		}
	}
	if t := r.goalTable(); len(t) > 1 {
		fmt.Fprintln(w, "\nGoals")
		t.print(w)
	}
}

// markdown is everything for a document.
func (r *results) markdown() string {
	var w strings.Builder
	fmt.Fprintln(&w, strings.Join(append([]string{r.Head}, r.Settings...), ".\n")+".")
	if t := r.goalTable(); len(t) > 1 {
		fmt.Fprintln(&w)
		t.markdown(&w)
	}
	for _, g := range groups {
		if t := r.table(g); t != nil {
			fmt.Fprintf(&w, "\n**%s.** %s\n\n", strings.ToUpper(g[:1])+g[1:], about[g])
			t.markdown(&w)
		}
	}
	if notes := append(slices.Clone(r.Notes), r.doubts()...); len(notes) > 0 {
		fmt.Fprintln(&w, "\nWarnings:")
		fmt.Fprintln(&w)
		for _, n := range notes {
			fmt.Fprintln(&w, "-", n)
		}
	}
	return w.String()
}

// intoFile replaces what is between the markers of a section.
func (r *results) intoFile(name, section string) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := replaceSection(string(old), section, r.markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}

func replaceSection(doc, section, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- bench %s -->\n", section), "<!-- end -->\n"
	before, rest, ok1 := strings.Cut(doc, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + "\n" + strings.TrimSpace(text) + "\n\n" + end + after, nil
}
