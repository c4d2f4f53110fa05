package checks_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/internal/checks/devtable"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// The table of devices in docs/verbs.md says of the software device and the fabric what they say; for the kernel's devices a test in
// guests sees to it.
func TestTableOfDevices(t *testing.T) {
	const document = "../../docs/verbs.md"
	software := only(t, rdma.Software(rdma.SoftwareConfig{}))
	fabric := only(t, verbstest.NewFabric(verbstest.Config{}).Host("a", "10.0.0.1"))
	for column, dev := range map[string]verbs.Device{"software": software, "fabric": fabric} {
		differ, err := devtable.Differences(document, column, dev)
		require.NoError(t, err)
		require.Empty(t, differ)
	}

	wrong, err := os.ReadFile(document)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "wrong.md")
	require.NoError(t, os.WriteFile(name, []byte(strings.Replace(string(wrong), "| RDMA_READ | yes |", "| RDMA_RAED | yes |", 1)), 0o600))
	differ, err := devtable.Differences(name, "fabric", fabric)
	require.NoError(t, err)
	require.Len(t, differ, 2, "a row that is not known, and one that is missing")
	differ, err = devtable.Differences(document, "fabric", software)
	require.NoError(t, err)
	require.NotEmpty(t, differ)
	_, err = devtable.Differences(document, "mlx5", software)
	require.ErrorContains(t, err, "mlx5")
}

func only(t *testing.T, p interface {
	Devices() ([]verbs.Device, error)
}) verbs.Device {
	devices, err := p.Devices()
	require.NoError(t, err)
	require.Len(t, devices, 1)
	return devices[0]
}
