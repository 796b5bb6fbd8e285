package deploy

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"
)

func TestCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "deploy/compose/compose.yaml")}, cli.WithName("headroom"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exporter, err := project.GetService("headroom")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := project.GetService("engine")
	if err != nil {
		t.Fatal(err)
	}
	checkFlags(t, exporter.Command)
	// The build context is the repository, where the Dockerfile stands.
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if exporter.Build == nil || exporter.Build.Context != top {
		t.Errorf("builds %+v, want the repository", exporter.Build)
	}
	if !exporter.ReadOnly || exporter.Privileged || !slices.Equal(exporter.CapDrop, []string{"ALL"}) || !slices.Contains(exporter.SecurityOpt, "no-new-privileges:true") {
		t.Error("not confined: want a read-only root, no capabilities, no new privileges")
	}
	if exporter.Pid != "service:engine" {
		t.Errorf("process namespace %q, want the engine's", exporter.Pid)
	}
	limit := exporter.Environment["GOMEMLIMIT"]
	if limit == nil || bytesOf(t, *limit) >= int64(exporter.MemLimit) {
		t.Errorf("GOMEMLIMIT is not below the memory limit of %d bytes", exporter.MemLimit)
	}
	if diff := cmp.Diff(devices(t, engine), devices(t, exporter)); diff != "" {
		t.Errorf("GPUs of engine and exporter differ:\n%s", diff)
	}
	for _, service := range project.Services {
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to every network", service.Name, port.Published)
			}
		}
	}
}

// devices returns the ids of the GPUs that a service gets.
func devices(t *testing.T, service types.ServiceConfig) []string {
	t.Helper()
	if service.Deploy == nil || service.Deploy.Resources.Reservations == nil {
		t.Fatalf("%s has no devices", service.Name)
	}
	var ids []string
	for _, device := range service.Deploy.Resources.Reservations.Devices {
		if device.Driver != "nvidia" || !slices.Contains(device.Capabilities, "gpu") {
			t.Errorf("%s: device %+v, want an NVIDIA GPU", service.Name, device)
		}
		ids = append(ids, device.IDs...)
	}
	return ids
}
