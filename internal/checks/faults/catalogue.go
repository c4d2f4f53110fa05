package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A row is a line of the table in docs/faults.md.
type row struct {
	id      string
	fault   string
	devices []string // any, rxe, siw, unit
	issue   int
}

// on reports whether the row has one of the devices.
func (r row) on(devices ...string) bool {
	return slices.ContainsFunc(devices, func(d string) bool { return slices.Contains(r.devices, d) })
}

// A catalogue is what docs/faults.md says.
type catalogue struct {
	due  int // rows of this issue and earlier ones need a test
	rows []row
}

var (
	idPattern  = regexp.MustCompile(`^[A-Z]+-[0-9]+$`)
	duePattern = regexp.MustCompile(`(?m)^Due: ([0-9]+)$`)
	devices    = []string{"any", "rxe", "siw", "unit"}
)

// parseCatalogue reads the tables of docs/faults.md: | id | fault | device | issue | how it is shown |.
func parseCatalogue(text string) (*catalogue, error) {
	due := duePattern.FindAllStringSubmatch(text, -1)
	if len(due) != 1 {
		return nil, fmt.Errorf("want one line \"Due: N\", found %d", len(due))
	}
	c := &catalogue{}
	c.due, _ = strconv.Atoi(due[0][1])
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| id ") || strings.HasPrefix(line, "|-") {
			continue
		}
		r, err := parseRow(line)
		if err == nil && seen[r.id] {
			err = fmt.Errorf("%s appears twice", r.id)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		seen[r.id] = true
		c.rows = append(c.rows, r)
	}
	if len(c.rows) == 0 {
		return nil, fmt.Errorf("no rows")
	}
	return c, nil
}

func parseRow(line string) (row, error) {
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if len(cells) != 5 {
		return row{}, fmt.Errorf("%d cells, want id, fault, device, issue, how it is shown", len(cells))
	}
	r := row{id: cells[0], fault: cells[1]}
	if !idPattern.MatchString(r.id) {
		return row{}, fmt.Errorf("%q is no id such as CLOSE-1", r.id)
	}
	for d := range strings.SplitSeq(cells[2], ",") {
		d = strings.TrimSpace(d)
		if !slices.Contains(devices, d) {
			return row{}, fmt.Errorf("%s: %q is no device, want some of %v", r.id, d, devices)
		}
		r.devices = append(r.devices, d)
	}
	var err error
	if r.issue, err = strconv.Atoi(cells[3]); err != nil || r.issue < 1 {
		return row{}, fmt.Errorf("%s: %q is no issue number", r.id, cells[3])
	}
	if r.fault == "" || cells[4] == "" {
		return row{}, fmt.Errorf("%s: empty cell", r.id)
	}
	return r, nil
}
