package main

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var everything = regexp.MustCompile("")

func TestPlan(t *testing.T) {
	tests := []string{
		"TestPairNoneP", "TestFreshSiwF", "TestBothB", "TestRxeR", "TestSiwS", "TestPairRxeP", "TestPairSiwP", "TestFreshRxeF",
	}
	got, err := plan(tests, everything)
	if err != nil {
		t.Fatal(err)
	}
	want := []job{
		{dev: "rxe", tests: []string{"TestBothB", "TestRxeR"}},
		{dev: "siw", tests: []string{"TestBothB", "TestSiwS"}},
		{dev: "none", paired: true, alone: true, tests: []string{"TestPairNoneP"}},
		{dev: "siw", alone: true, tests: []string{"TestFreshSiwF"}},
		{dev: "rxe", paired: true, alone: true, tests: []string{"TestPairRxeP"}},
		{dev: "siw", paired: true, alone: true, tests: []string{"TestPairSiwP"}},
		{dev: "rxe", alone: true, tests: []string{"TestFreshRxeF"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("plan:\n got %+v\nwant %+v", got, want)
	}
	if n := count(got); n != 9 {
		t.Errorf("count = %d, want 9: TestBoth counts twice", n)
	}
}

func TestPlanOnly(t *testing.T) {
	got, err := plan([]string{"TestRxeA", "TestBothA", "TestPairRxeB"}, regexp.MustCompile("A$"))
	if err != nil {
		t.Fatal(err)
	}
	want := []job{
		{dev: "rxe", tests: []string{"TestRxeA", "TestBothA"}},
		{dev: "siw", tests: []string{"TestBothA"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("plan: got %+v, want %+v", got, want)
	}
}

func TestPlanUnknownName(t *testing.T) {
	for _, name := range []string{"TestSomething", "TestPairX", "TestFreshX", "Testrxe"} {
		_, err := plan([]string{"TestRxeA", name}, regexp.MustCompile("TestRxeA"))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("plan with %s: error %v, want one that names it", name, err)
		}
	}
}
