// Faults compares docs/faults.md, the list of faults that sockets over RDMA have had, with the tests that name them, and
// prints each row that is due with its tests. It fails if such a row has no test, has none where its devices are (in a guest for rxe
// and siw, on the host for any and unit, on the software device for any), or if a test names a row that does not exist. Run it in the
// module's root.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Stdout, "."); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, root string) error {
	dir := os.DirFS(root)
	text, err := os.ReadFile(root + "/docs/faults.md")
	if err != nil {
		return err
	}
	c, err := parseCatalogue(string(text))
	if err != nil {
		return fmt.Errorf("docs/faults.md: %w", err)
	}
	marks, err := findMarks(dir)
	if err != nil {
		return err
	}
	return report(w, c, marks)
}

// report prints the rows that are due. The error lists what is wrong, all of it.
func report(w io.Writer, c *catalogue, marks []mark) error {
	known := map[string]bool{}
	var wrong []string
	due := 0
	for _, r := range c.rows {
		known[r.id] = true
		var tests []string
		var host, guest, software bool
		for _, m := range marks {
			if !slices.Contains(m.ids, r.id) {
				continue
			}
			host, guest, software = host || m.host, guest || m.guest, software || m.software
			test := m.test
			if m.software {
				test += " " + softwareSuffix
			}
			if !slices.Contains(tests, test) {
				tests = append(tests, test)
			}
		}
		if r.issue > c.due {
			continue
		}
		due++
		switch {
		case len(tests) == 0:
			wrong = append(wrong, fmt.Sprintf("%s has no test: %s", r.id, r.fault))
			tests = []string{"(none)"}
		case r.on("rxe", "siw") && !guest:
			wrong = append(wrong, fmt.Sprintf("%s has no test in a guest: %s", r.id, r.fault))
		case r.on("any", "unit") && !host:
			wrong = append(wrong, fmt.Sprintf("%s has no test on the host: %s", r.id, r.fault))
		case r.on("any") && !software:
			wrong = append(wrong, fmt.Sprintf("%s has no test on the software device: %s", r.id, r.fault))
		}
		fmt.Fprintf(w, "%-9s %s\n", r.id, strings.Join(tests, ", "))
	}
	for _, m := range marks {
		for _, id := range m.ids {
			if !known[id] {
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s names %s, which docs/faults.md does not have", m.file, m.line, m.test, id))
			}
		}
	}
	fmt.Fprintf(w, "%d of %d rows are due (issue %d and before)\n", due, len(c.rows), c.due)
	if len(wrong) > 0 {
		return fmt.Errorf("%d gaps\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}
