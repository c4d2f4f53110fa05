package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

const doc = `# Faults

Due: 2

| id | fault | device | issue | shown by |
|---|---|---|---|---|
| A-1 | one | any | 2 | x |
| A-2 | two | any, rxe | 1 | x |
| B-1 | three | unit | 3 | x |
`

// The marks in this source must not be marks of this file: they are joined when the test runs.
var testSource = strings.ReplaceAll(`package p

import "testing"

// TestOne is.
// FAULT: A-1
func TestOne(t *testing.T) {}

func TestSub(t *testing.T) {
	// FAULT: A-2, A-1 (software)
	t.Run("sub test", func(t *testing.T) {})
	for _, c := range []struct{ name string }{
		// FAULT: B-1
		{"entry"},
	} {
		_ = c
	}
}

var table = map[string]func(*testing.T){
	// FAULT: A-2
	"row": func(t *testing.T) {},
}
`, "FAULT", "fault")

func TestReport(t *testing.T) {
	c, err := parseCatalogue(doc)
	if err != nil {
		t.Fatal(err)
	}
	marks, err := findMarks(fstest.MapFS{
		"p/p_test.go":                  {Data: []byte(testSource)},
		"p/p.go":                       {Data: []byte(strings.ReplaceAll(testSource, "A-1", "NOT-1"))}, // no test file
		"p/testdata/x_test.go":         {Data: []byte("not Go")},
		"verbs/verbstest/cases.go":     {Data: []byte(strings.ReplaceAll("package v\n\n// FAULT: A-2\nfunc caseTwo(t *T) {}\n", "FAULT", "fault"))},
		"internal/softiwarp/x_test.go": {Data: []byte("package s\n\nfunc TestSuite(t *testing.T) { verbstest.Run(t, verbstest.Env{}) }\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := report(&out, c, marks); err != nil {
		t.Error(err)
	}
	want := "A-1       TestOne, TestSub/sub_test (software)\nA-2       TestSub/sub_test (software), row, caseTwo (software)\n2 of 3 rows are due (issue 2 and before)\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestGaps(t *testing.T) {
	c, err := parseCatalogue(doc + "| A-3 | four | any, rxe | 2 | x |\n| A-4 | five | unit | 2 | x |\n| A-5 | six | any | 2 | x |\n")
	if err != nil {
		t.Fatal(err)
	}
	marks := []mark{
		{ids: []string{"A-3", "C-7"}, file: "x_test.go", line: 3, test: "TestX", host: true},
		{ids: []string{"A-5"}, file: "x_test.go", line: 5, test: "TestX", host: true},
		{ids: []string{"A-4", "B-1"}, file: "x_test.go", line: 9, test: "TestY", guest: true},
	}
	var out strings.Builder
	err = report(&out, c, marks)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"6 gaps", "A-1 has no test: one", "A-2 has no test: two", "A-3 has no test in a guest", "A-4 has no test on the host",
		"A-5 has no test on the software device", "x_test.go:3: TestX names C-7",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if !strings.Contains(out.String(), "A-2       (none)") {
		t.Errorf("output %q", out.String())
	}
}

func TestBadMarks(t *testing.T) {
	for name, src := range map[string]string{
		"device":      "package p\n// FAULT: A-1 (hardware)\nfunc TestX(t *testing.T) {}\n",
		"no id":       "package p\n// FAULT: close\nfunc TestX(t *testing.T) {}\n",
		"no test":     "package p\n// FAULT: A-1\nfunc helper() {}\n",
		"empty line":  "package p\n// FAULT: A-1\n\nfunc TestX(t *testing.T) {}\n",
		"end of file": "package p\n// FAULT: A-1\n",
		"statement":   "package p\nfunc TestX(t *testing.T) {\n\t// FAULT: A-1\n\tx++\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := parseMarks("p_test.go", []byte(strings.ReplaceAll(src, "FAULT", "fault"))); err == nil {
				t.Errorf("no error, marks %v", m)
			}
		})
	}
}

func TestBadCatalogues(t *testing.T) {
	for name, text := range map[string]string{
		"no due":     strings.Replace(doc, "Due: 2", "", 1),
		"two dues":   doc + "\nDue: 3\n",
		"twice":      doc + "| A-1 | one | any | 2 | x |\n",
		"id":         doc + "| a1 | one | any | 2 | x |\n",
		"device":     doc + "| A-3 | one | all | 2 | x |\n",
		"issue":      doc + "| A-3 | one | any | two | x |\n",
		"cells":      doc + "| A-3 | one | any | 2 |\n",
		"empty cell": doc + "| A-3 | | any | 2 | x |\n",
		"no rows":    "Due: 2\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseCatalogue(text); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestWhereTestsRun(t *testing.T) {
	for _, c := range []struct {
		path, constraint, suffix string
		host, guest, software    bool
	}{
		{"p_test.go", "", "", true, false, false},
		{"p_test.go", "", " (software)", true, false, true},
		{"p_test.go", "//go:build guest", "", false, true, false},
		{"p_test.go", "//go:build guest", " (software)", false, true, false},
		{"p_test.go", "//go:build linux && guest && cgo", "", false, true, false},
		{"p_test.go", "//go:build !windows || guest", "", true, false, false},
		{"p_test.go", "//go:build !guest", "", true, false, false},
		{"verbs/verbstest/cases.go", "", "", true, true, false}, // the software device's tests may not run it
		{"verbs/verbstest/fabric_test.go", "", "", true, false, false},
		{"internal/softiwarp/x_test.go", "", "", true, false, true},
	} {
		src := c.constraint + "\n\npackage p\n\n// FAULT: A-1" + c.suffix + "\nfunc TestX(t *testing.T) {}\n"
		marks, err := parseMarks(c.path, []byte(strings.ReplaceAll(src, "FAULT", "fault")))
		if err != nil {
			t.Fatal(err)
		}
		if m := marks[0]; m.host != c.host || m.guest != c.guest || m.software != c.software {
			t.Errorf("%+v: host %v, guest %v, software %v", c, m.host, m.guest, m.software)
		}
	}
}
