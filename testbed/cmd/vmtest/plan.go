package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A job is what runs in one guest or, if paired, in one pair of guests.
type job struct {
	dev    string
	paired bool
	alone  bool // its one test may leave the device broken
	tests  []string
}

// label is a test's name in the report: where it ran, and which.
func (j *job) label(test string) string { return j.dev + "/" + test }

// A place is where tests with a certain prefix run: once for each of devs.
type place struct {
	prefix string
	devs   []string
	job    job
}

// prefixes say by a test's name where it runs. None of them begins another.
var prefixes = []place{
	{"TestRxe", []string{"rxe"}, job{}},
	{"TestSiw", []string{"siw"}, job{}},
	{"TestBoth", []string{"rxe", "siw"}, job{}},
	{"TestFreshRxe", []string{"rxe"}, job{alone: true}},
	{"TestFreshSiw", []string{"siw"}, job{alone: true}},
	{"TestPairRxe", []string{"rxe"}, job{alone: true, paired: true}},
	{"TestPairSiw", []string{"siw"}, job{alone: true, paired: true}},
	{"TestPairNone", []string{"none"}, job{alone: true, paired: true}},
}

// plan distributes those of tests that match only over jobs, shared guests
// first. A name without a known prefix is an error even if only leaves it out:
// it would never run.
func plan(tests []string, only *regexp.Regexp) ([]job, error) {
	shared := map[string]*job{"rxe": {dev: "rxe"}, "siw": {dev: "siw"}}
	var alone []job
	for _, test := range tests {
		at := slices.IndexFunc(prefixes, func(p place) bool { return strings.HasPrefix(test, p.prefix) })
		if at < 0 {
			return nil, fmt.Errorf("test %s: its name does not say where to run it; see testbed/README.md", test)
		}
		if !only.MatchString(test) {
			continue
		}
		for _, dev := range prefixes[at].devs {
			if j := prefixes[at].job; j.alone {
				j.dev, j.tests = dev, []string{test}
				alone = append(alone, j)
			} else {
				shared[dev].tests = append(shared[dev].tests, test)
			}
		}
	}
	var jobs []job
	for _, dev := range []string{"rxe", "siw"} {
		if len(shared[dev].tests) > 0 {
			jobs = append(jobs, *shared[dev])
		}
	}
	return append(jobs, alone...), nil
}

// count is the number of results that jobs must give.
func count(jobs []job) int {
	n := 0
	for _, j := range jobs {
		n += len(j.tests)
	}
	return n
}
