// Package devtable compares the table of devices in docs/verbs.md with what devices say of themselves. Tests on the host and in guests use
// it, each for the devices that it has.
package devtable

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/rconn/rdma/verbs"
)

// Differences tells where the column of that name in the table of a document is not what the device says.
func Differences(document, column string, dev verbs.Device) ([]string, error) {
	text, err := os.ReadFile(document)
	if err != nil {
		return nil, err
	}
	_, table, _ := strings.Cut(string(text), "<!-- devices -->\n")
	table, _, ok := strings.Cut(table, "<!-- end -->")
	if !ok {
		return nil, fmt.Errorf("%s has no table between <!-- devices --> and <!-- end -->", document)
	}
	rows := strings.Split(strings.TrimSpace(table), "\n")
	at := slices.Index(cells(rows[0]), column)
	if at < 1 {
		return nil, fmt.Errorf("%s has no column %s", document, column)
	}
	said := says(dev)
	var differ []string
	for _, row := range rows[2:] {
		c := cells(row)
		if len(c) <= at {
			return nil, fmt.Errorf("%s: the row %q is too short", document, row)
		}
		want, known := said[c[0]]
		got, _, _ := strings.Cut(strings.ReplaceAll(c[at], ",", " "), " ") // the rest explains
		if !known || got != want {
			differ = append(differ, fmt.Sprintf("%s, %s: %s, the device says %q", c[0], column, c[at], want))
		}
		delete(said, c[0])
	}
	for name := range said {
		differ = append(differ, "no row "+name)
	}
	return differ, nil
}

func cells(row string) []string {
	all := strings.Split(strings.Trim(row, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// says is the table's column by the device's own word.
func says(dev verbs.Device) map[string]string {
	attr := dev.Attr()
	yes := func(has bool) string {
		if has {
			return "yes"
		}
		return "no"
	}
	said := map[string]string{
		"transport":            attr.Transport.String(),
		"atomics respected by": attr.Atomic.String(),
		"SRQ":                  yes(attr.MaxSRQ > 0),
		"RC by hand":           yes(attr.Caps.QPTypes.Has(verbs.RC)),
		"UC":                   yes(attr.Caps.QPTypes.Has(verbs.UC)),
		"UD":                   yes(attr.Caps.QPTypes.Has(verbs.UD)),
		"AH":                   yes(attr.MaxAH > 0),
		"RNR retry":            yes(attr.Caps.RNR),
		"WRITE acknowledged":   yes(attr.Caps.WriteAcked),
		"locks memory":         yes(attr.Caps.LocksMemory),
		"frees earlier":        yes(attr.Caps.FreesEarlier),
	}
	for op := verbs.OpSend; op <= verbs.OpAtomicFetchAndAdd; op++ {
		said[op.String()] = yes(attr.Caps.Send.Has(op))
	}
	return said
}
