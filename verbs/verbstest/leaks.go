package verbstest

import (
	"testing"
	"time"
)

// CheckLeaks fails a test when objects are still open on the fabric, or a rule was broken. What is being closed in the background
// has a few seconds for it.
func CheckLeaks(t testing.TB, f *Fabric) {
	t.Helper()
	for range 300 {
		if f.Objects() == (Objects{}) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if o := f.Objects(); o != (Objects{}) {
		t.Errorf("objects still open on the fabric: %+v", o)
	}
	for _, v := range f.Violations() {
		t.Errorf("rule broken: %s", v)
	}
}
